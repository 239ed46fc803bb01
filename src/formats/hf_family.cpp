#include "hrm/formats/hf_family.h"

#include <algorithm>
#include <array>
#include <utility>

namespace hrm {
namespace {

constexpr std::array kFamilies = {
    HfFamily{.model_type = "qwen3",
             .architecture = "Qwen3ForCausalLM",
             .models = "Qwen3",
             .qk_norm = true,
             .window = WindowRule::switched,
             .kv_heads = 32,
             .head_dim = 128},
    HfFamily{.model_type = "llama",
             .architecture = "LlamaForCausalLM",
             .models = "Llama 2, 3, 3.1, 3.2, 3.3, TinyLlama, SmolLM, SmolLM2",
             .bos_id = 1,
             .eos_id = 2},
    HfFamily{.model_type = "mistral",
             .architecture = "MistralForCausalLM",
             .models = "Mistral 7B",
             .window = WindowRule::always,
             .kv_heads = 8,
             .bos_id = 1,
             .eos_id = 2},
    HfFamily{.model_type = "qwen2",
             .architecture = "Qwen2ForCausalLM",
             .models = "Qwen2, Qwen2.5",
             .form = {.qkv_bias = true},
             .window = WindowRule::switched,
             .kv_heads = 32},
    HfFamily{.model_type = "gemma",
             .architecture = "GemmaForCausalLM",
             .models = "Gemma 1",
             .form = {.gelu_gate = true, .scaled_embedding = true, .centred_norms = true},
             .kv_heads = 16,
             .head_dim = 256,
             .tied = true,
             .bos_id = 2,
             .eos_id = 1},
    HfFamily{.model_type = "phi3",
             .architecture = "Phi3ForCausalLM",
             .models = "Phi-3-mini with 4,096 positions",
             .form = {.joined_weights = true},
             .window = WindowRule::if_given,
             .stretched_rope = false,
             .rms_norm_eps = 1e-5,
             .bos_id = 1,
             .eos_id = 32000},
    HfFamily{.model_type = "olmo2",
             .architecture = "Olmo2ForCausalLM",
             .models = "OLMo-2",
             .form = {.wide_qk_norm = true, .norms_behind = true},
             .rms_norm_eps = 1e-5,
             .eos_id = 50279},
    HfFamily{.model_type = "qwen3_moe",
             .architecture = "Qwen3MoeForCausalLM",
             .models = "Qwen3-MoE, such as Qwen3-30B-A3B",
             .qk_norm = true,
             .window = WindowRule::all_switched,
             .kv_heads = 4,
             .experts = {.count = 128, .top_k = 8, .inner = 768, .some_dense = true, .load_weight = 0.001}},
    HfFamily{.model_type = "mixtral",
             .architecture = "MixtralForCausalLM",
             .models = "Mixtral 8x7B, 8x22B",
             .form = {.mixtral_names = true},
             .window = WindowRule::if_given,
             .kv_heads = 8,
             .rms_norm_eps = 1e-5,
             .rope_theta = 1e6,
             .bos_id = 1,
             .eos_id = 2,
             .experts = {.count = 8, .top_k = 2, .normalizes = true, .load_weight = 0.001}},
    HfFamily{.model_type = "olmoe",
             .architecture = "OlmoeForCausalLM",
             .models = "OLMoE",
             .form = {.wide_qk_norm = true},
             .rms_norm_eps = 1e-5,
             .eos_id = 50279,
             .experts = {.count = 64, .top_k = 8, .load_weight = 0.01}},
};

constexpr std::array<std::pair<std::string_view, std::string_view>, 9> kOthers{{
    {"gemma2", "it caps attention and logits (attn_logit_softcapping, final_logit_softcapping)"},
    {"gemma3", "its layers have two rotations (rope_local_base_freq) and are of two kinds (layer_types)"},
    {"gemma3_text", "its layers have two rotations (rope_local_base_freq) and are of two kinds (layer_types)"},
    {"gpt_oss", "its experts clamp their gates (swiglu_limit), and its attention has sinks"},
    {"olmo", "its norms have no weights, and it may clip (clip_qkv)"},
    {"phi", "it turns only a part of each head (partial_rotary_factor)"},
    {"phimoe", "its router picks one expert after the other (router_jitter_noise)"},
    {"qwen2_moe", "each of its layers has a shared expert with a gate (shared_expert_intermediate_size)"},
    {"smollm3", "some of its layers have no rotation (no_rope_layers)"},
}};

}  // namespace

std::string_view name(RopeKind kind) {
  switch (kind) {
    case RopeKind::standard:
      return "default";
    case RopeKind::linear:
      return "linear";
    case RopeKind::dynamic:
      return "dynamic";
    case RopeKind::yarn:
      return "yarn";
    case RopeKind::llama3:
      return "llama3";
  }
  return "";
}

std::span<const HfFamily> hf_families() {
  return kFamilies;
}

const HfFamily* find_hf_family(std::string_view model_type) {
  for (const HfFamily& family : kFamilies) {
    if (family.model_type == model_type) return &family;
  }
  return nullptr;
}

bool DecoderExperts::has(int64_t layer) const {
  return count > 0 && std::find(dense_layers.begin(), dense_layers.end(), layer) == dense_layers.end();
}

namespace {

std::vector<std::string> joined_targets(const std::vector<std::string>& targets) {
  struct Joined {
    std::string whole;
    std::vector<std::string> parts;
  };
  const std::array<Joined, 2> all{
      {{"qkv_proj", {"q_proj", "k_proj", "v_proj"}}, {"gate_up_proj", {"gate_proj", "up_proj"}}}};
  const auto holds = [](const std::vector<std::string>& list, const std::string& name) {
    return std::find(list.begin(), list.end(), name) != list.end();
  };
  std::vector<std::string> out = targets;
  for (const Joined& joined : all) {
    const bool complete = std::all_of(joined.parts.begin(), joined.parts.end(),
                                      [&](const std::string& part) { return holds(out, part); });
    if (!complete) continue;
    std::erase_if(out, [&](const std::string& name) { return holds(joined.parts, name) || name == joined.whole; });
    out.push_back(joined.whole);
  }
  return out;
}

std::vector<std::string> mixtral_targets(std::vector<std::string> targets) {
  for (std::string& target : targets) {
    for (const auto& [usual, theirs] : {std::pair{"gate_proj", "w1"}, {"up_proj", "w3"}, {"down_proj", "w2"}}) {
      if (target == usual) target = theirs;
    }
  }
  return targets;
}

}  // namespace

std::vector<std::string> family_targets(const DecoderForm& form, const std::vector<std::string>& targets) {
  if (form.joined_weights) return joined_targets(targets);
  return form.mixtral_names ? mixtral_targets(targets) : targets;
}

std::string_view why_not_read(std::string_view model_type) {
  for (const auto& [type, why] : kOthers) {
    if (type == model_type) return why;
  }
  return "";
}

}  // namespace hrm
