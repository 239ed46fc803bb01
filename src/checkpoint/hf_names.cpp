#include "checkpoint/hf_names.h"

#include "hrm/base/error.h"

namespace hrm::checkpoint {

namespace {

void add_experts(std::map<std::string, HfWeight>& weights, const models::DecoderOptions& o, const std::string& layer) {
  const int64_t E = o.experts.count, F = o.experts.inner, D = o.width;
  const bool mixtral = o.form.mixtral_names;
  const std::string theirs = layer + (mixtral ? "block_sparse_moe." : "mlp."), in_memory = layer + "mlp.";
  HfWeight gate_up{.shape = {E * 2 * F, D},
                   .parts = {},
                   .in_memory = in_memory + "experts.gate_up_proj",
                   .shape_in_memory = {E, 2 * F, D}};
  HfWeight down{
      .shape = {E * D, F}, .parts = {}, .in_memory = in_memory + "experts.down_proj", .shape_in_memory = {E, D, F}};
  for (int64_t e = 0; e < E; ++e) {
    const auto part = [&](const char* name) { return cat(theirs, "experts.", e, ".", name, ".weight"); };
    gate_up.parts.emplace_back(part(mixtral ? "w1" : "gate_proj"), F);
    gate_up.parts.emplace_back(part(mixtral ? "w3" : "up_proj"), F);
    down.parts.emplace_back(part(mixtral ? "w2" : "down_proj"), D);
  }
  weights[layer + "mlp.gate_up.weight"] = std::move(gate_up);
  weights[layer + "mlp.down.weight"] = std::move(down);
  weights[layer + "mlp.router.weight"] = {.shape = {E, D},
                                          .parts = {{theirs + "gate.weight", E}},
                                          .in_memory = in_memory + "gate.weight",
                                          .shape_in_memory = {E, D}};
}

}  // namespace

std::map<std::string, HfWeight> hf_weights(const models::DecoderOptions& o) {
  std::map<std::string, HfWeight> weights;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape, const std::string& theirs) {
    weights[name] = {shape, {{theirs, shape[0]}}};
  };
  add("model.embed_tokens.weight", {o.vocabulary, o.width}, "model.embed_tokens.weight");
  add("model.norm.weight", {o.width}, "model.norm.weight");
  if (!o.tied) add("model.lm_head.weight", {o.vocabulary, o.width}, "lm_head.weight");
  const int64_t q_rows = o.heads * o.head_dim, kv_rows = o.kv_heads * o.head_dim;
  for (int64_t i = 0; i < o.layers; ++i) {
    const std::string layer = cat("model.layers.", i, ".");
    const auto same = [&](const std::string& name, std::vector<int64_t> shape) {
      add(layer + name, std::move(shape), layer + name);
    };
    same("post_attention_layernorm.weight", {o.width});
    same(o.form.norms_behind ? "post_feedforward_layernorm.weight" : "input_layernorm.weight", {o.width});
    same("self_attn.o_proj.weight", {o.width, q_rows});
    if (o.experts.has(i)) {
      add_experts(weights, o, layer);
    } else {
      same("mlp.down_proj.weight", {o.width, o.inner});
    }
    if (o.qk_norm) {
      same("self_attn.q_norm.weight", {o.head_dim});
      same("self_attn.k_norm.weight", {o.head_dim});
    } else if (o.form.wide_qk_norm) {
      same("self_attn.q_norm.weight", {q_rows});
      same("self_attn.k_norm.weight", {kv_rows});
    }
    if (o.form.joined_weights) {
      same("self_attn.qkv_proj.weight", {q_rows + 2 * kv_rows, o.width});
      same("mlp.gate_up_proj.weight", {2 * o.inner, o.width});
      continue;
    }
    const auto joined = [&](const char* end, std::vector<int64_t> shape) {
      shape.insert(shape.begin(), q_rows + 2 * kv_rows);
      weights[cat(layer, "self_attn.qkv_proj.", end)] = {shape,
                                                         {{cat(layer, "self_attn.q_proj.", end), q_rows},
                                                          {cat(layer, "self_attn.k_proj.", end), kv_rows},
                                                          {cat(layer, "self_attn.v_proj.", end), kv_rows}}};
    };
    joined("weight", {o.width});
    if (o.form.qkv_bias) joined("bias", {});
    if (o.experts.has(i)) continue;
    weights[layer + "mlp.gate_up_proj.weight"] = {
        {2 * o.inner, o.width}, {{layer + "mlp.gate_proj.weight", o.inner}, {layer + "mlp.up_proj.weight", o.inner}}};
  }
  return weights;
}

}  // namespace hrm::checkpoint
