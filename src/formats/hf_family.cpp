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
};

constexpr std::array<std::pair<std::string_view, std::string_view>, 12> kOthers{{
    {"gemma2", "it caps attention and logits (attn_logit_softcapping, final_logit_softcapping)"},
    {"gemma3", "its layers have two rotations (rope_local_base_freq) and are of two kinds (layer_types)"},
    {"gemma3_text", "its layers have two rotations (rope_local_base_freq) and are of two kinds (layer_types)"},
    {"gpt_oss", "it has experts (num_local_experts) and sinks of attention"},
    {"mixtral", "it has experts (num_local_experts)"},
    {"olmo", "its norms have no weights, and it may clip (clip_qkv)"},
    {"olmoe", "it has experts (num_experts)"},
    {"phi", "it turns only a part of each head (partial_rotary_factor)"},
    {"phimoe", "it has experts (num_local_experts)"},
    {"qwen2_moe", "it has experts (num_experts)"},
    {"qwen3_moe", "it has experts (num_experts)"},
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

std::string_view why_not_read(std::string_view model_type) {
  for (const auto& [type, why] : kOthers) {
    if (type == model_type) return why;
  }
  return "";
}

}  // namespace hrm
