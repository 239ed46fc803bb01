#include "checkpoint/torchscript_decoder.h"

#include <cmath>

#include "checkpoint/hf_names.h"
#include "checkpoint/torchscript_source.h"
#include "hrm/base/error.h"
#include "hrm/checkpoint/export.h"
#include "hrm/nn/rotary.h"

namespace hrm::checkpoint {

using torch::jit::Module;

Module DecoderExporter::embedding(const std::string& name) {
  return object("Embedding", {parameter("weight", name + ".weight")}, "");
}

Module DecoderExporter::rms_norm(const std::string& name) {
  return object("RMSNorm", {parameter("weight", name + ".weight")},
                rms_norm_source(options_.eps, options_.form.centred_norms));
}

DecoderExporter::Member DecoderExporter::frequencies() const {
  return buffer("inv_freq", nn::rotary_frequencies(options_.head_dim, options_.rope_theta, options_.rope));
}

Module DecoderExporter::feed_forward(const std::string& name) {
  if (has_experts(name)) {
    return object("Experts",
                  {child("router", linear(name + ".router")), child("gate_up", linear(name + ".gate_up")),
                   child("down", linear(name + ".down"))},
                  experts_source(models::expert_options(options_), options_.width));
  }
  require(has(name + ".gate_up_proj.weight"), ExitCode::usage, "the layers of '", name,
          "' have no form in TorchScript; use --to hf or safetensors");
  return swiglu(name, options_.form.gelu_gate ? Gate::gelu : Gate::silu);
}

Module DecoderExporter::block(const std::string& name, StackKind kind, bool cross) {
  const bool behind = options_.form.norms_behind;
  const std::string attn = name + ".self_attn.";
  Members attention{child("qkv_proj", linear(attn + "qkv_proj")), child("o_proj", linear(attn + "o_proj"))};
  if (options_.qk_norm || options_.form.wide_qk_norm) {
    // These norms multiply by their weight in every family.
    for (const char* norm : {"q_norm", "k_norm"}) {
      attention.push_back(child(
          norm, object("HeadNorm", {parameter("weight", cat(attn, norm, ".weight"))}, rms_norm_source(options_.eps))));
    }
  }
  Members members{
      child("self_attn", object(kind_name(kind) + "Attention", attention, grouped_attention_source(options_, kind))),
      child("mlp", feed_forward(name + ".mlp"))};
  for (const char* norm : {behind ? "post_feedforward_layernorm" : "input_layernorm", "post_attention_layernorm"}) {
    members.push_back(child(norm, rms_norm(cat(name, ".", norm))));
  }
  if (cross) {
    const std::string other = name + ".cross_attn.";
    members.push_back(child("cross_layernorm", rms_norm(name + ".cross_layernorm")));
    members.push_back(child(
        "cross_attn", object("CrossAttention",
                             {child("q_proj", linear(other + "q_proj")), child("kv_proj", linear(other + "kv_proj")),
                              child("o_proj", linear(other + "o_proj"))},
                             cross_attention_source(options_))));
  }
  const bool mixture = has_experts(name + ".mlp");
  return object(kind_name(kind) + (cross ? "Cross" : "") + (mixture ? "ExpertsBlock" : "Block"), members,
                transformer_block_source(kind, cross, behind));
}

std::string DecoderExporter::add_blocks(Members& members, const std::string& name, int64_t layers, StackKind kind,
                                        bool cross) {
  std::string lines;
  for (int64_t i = 0; i < layers; ++i) {
    members.push_back(child(cat("layer", i), block(cat(name, ".layers.", i), kind, cross)));
    lines += cat("    h = self.layer", i, ".forward(h", cross ? ", memory" : "", pass_arguments(kind), ")\n");
  }
  return lines;
}

Module DecoderExporter::decoder(const std::string& name, bool prefix, bool cross) {
  const StackKind kind = options_.window > 0 ? StackKind::windowed : StackKind::causal;
  Members members{child("embed_tokens", embedding(name + ".embed_tokens")), child("norm", rms_norm(name + ".norm")),
                  frequencies()};
  if (!options_.tied) members.push_back(child("lm_head", linear(name + ".lm_head")));
  const std::string lines = add_blocks(members, name, options_.layers, kind, cross);
  std::string source =
      cat("\ndef forward(self, ids: Tensor", prefix || cross ? ", memory: Tensor" : "", ") -> Tensor:\n");
  if (longest_ > 0) {
    source += cat("    assert ids.size(1) <= ", longest_, ", \"a row is longer than the ", longest_,
                  " positions that the model was made for; shorten it\"\n");
  }
  source += cat("    x = ", kEmbedTokens);
  if (options_.form.scaled_embedding) {
    const auto factor = static_cast<float>(std::sqrt(static_cast<double>(options_.width)));
    source += " * " + literal(factor);
  }
  source += cat("\n", prefix ? "    x = torch.cat([memory, x], 1)\n" : "",
                tables_source("x.size(1)", options_.rope.attention_factor));
  if (kind == StackKind::windowed) {
    source += cat(R"(    place = torch.arange(x.size(1), dtype=4, device=x.device)
    back = place.unsqueeze(1) - place
    mask = torch.logical_and(torch.ge(back, 0), torch.lt(back, )",
                  options_.window, "))\n");
  }
  source += cat("    h = x\n", lines, "    h = self.norm.forward(h)\n");
  if (prefix) source += "    h = torch.narrow(h, 1, memory.size(1), ids.size(1))\n";
  source +=
      options_.tied ? "    return torch.linear(h, self.embed_tokens.weight)\n" : "    return self.lm_head.forward(h)\n";
  return object("Decoder", members, source);
}

namespace {

class CausalExporter : DecoderExporter {
 public:
  CausalExporter(const models::DecoderOptions& options, const std::vector<std::pair<std::string, at::Tensor>>& weights)
      : DecoderExporter(options, weights, options.positions) {}

  Module model() {
    return object("CausalLM", {child("model", decoder("model", /*prefix=*/false, /*cross=*/false))},
                  "\ndef forward(self, ids: Tensor) -> Tensor:\n    return self.model.forward(ids)\n");
  }
};

}  // namespace

void export_causal_torchscript(const models::DecoderOptions& options,
                               const std::vector<std::pair<std::string, at::Tensor>>& weights,
                               const std::filesystem::path& file) {
  const models::DecoderOptions resolved = models::resolve(options);
  const std::map<std::string, at::Tensor> given(weights.begin(), weights.end());
  for (const auto& [name, wanted] : hf_weights(resolved)) {
    const auto found = given.find(name);
    require(found != given.end(), ExitCode::checkpoint, "the weights lack '", name, "' of the model to export");
    require(found->second.sizes() == at::IntArrayRef(wanted.shape), ExitCode::checkpoint, "the weights '", name,
            "' are ", cat(found->second.sizes()), ", but the model to export has ", cat(at::IntArrayRef(wanted.shape)));
  }
  save_torchscript(CausalExporter(resolved, weights).model(), file);
}

}  // namespace hrm::checkpoint
