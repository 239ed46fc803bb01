#pragma once
// The families of causal decoders that are read from folders of the transformers library: one row of facts for each.
// docs/adding-a-family.md says how a row is added.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hrm/formats/rope.h"

namespace hrm {

// What a block computes differently from Llama's, and how its weights are laid out in files.
struct DecoderForm {
  bool qkv_bias = false;          // q_proj, k_proj and v_proj have biases
  bool wide_qk_norm = false;      // one RMSNorm over all heads of q, and one over those of k, before the rotation
  bool norms_behind = false;      // x + norm(layer(x)) instead of x + layer(norm(x))
  bool gelu_gate = false;         // the gate is GELU (tanh approximation) instead of SiLU
  bool scaled_embedding = false;  // embeddings are multiplied by the square root of the width
  bool centred_norms = false;     // norms multiply by 1 + weight instead of by the weight
  bool joined_weights = false;    // files hold qkv_proj and gate_up_proj, which adapters see as one layer each

  bool operator==(const DecoderForm&) const = default;
};

// Which of its layers a family limits to a window.
enum class WindowRule {
  never,
  always,    // sliding_window, which has a default; null: none
  if_given,  // sliding_window, where it is there
  switched,  // sliding_window, if use_sliding_window is true
};

// Defaults are those of the library's configuration class, for keys that are missing.
struct HfFamily {
  std::string_view model_type, architecture;
  std::string_view models;  // for the documentation: what is known by this name
  DecoderForm form = {};
  bool qk_norm = false;  // RMSNorm over each head of q and k, before the rotation
  WindowRule window = WindowRule::never;
  bool stretched_rope = true;          // other kinds of rotation than the default one
  int64_t kv_heads = 0, head_dim = 0;  // 0: as many as heads; width / heads
  double rms_norm_eps = 1e-6;
  bool tied = false;
  int64_t bos_id = -1, eos_id = -1;  // -1: none
};
std::span<const HfFamily> hf_families();
// Null for a model_type that is not read.
const HfFamily* find_hf_family(std::string_view model_type);
// Why a model_type that the library knows is not read; empty if there is nothing to say of it.
std::string_view why_not_read(std::string_view model_type);

// Targets of an adapter for a family with joined_weights: q_proj, k_proj and v_proj together are qkv_proj, and
// gate_proj and up_proj are gate_up_proj. A list with only some of them keeps these names.
std::vector<std::string> joined_targets(const std::vector<std::string>& targets);

}  // namespace hrm
