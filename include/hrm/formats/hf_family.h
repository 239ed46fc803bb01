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
  bool mixtral_names = false;     // experts are block_sparse_moe.experts.N.w1, w3 and w2 instead of mlp.experts.N....

  bool operator==(const DecoderForm&) const = default;
};

// Mixtures of experts as feed-forward layers. Each expert is a SwiGLU without biases. A router takes a softmax over all
// experts, and each token goes to the top_k of them, however many others go there. Adapters, import and export see the
// projections of each expert as layers of their own.
struct DecoderExperts {
  int64_t count = 0;  // of each layer; 0: all layers are dense
  int64_t top_k = 0;
  int64_t inner = 0;                       // inner width of one expert
  bool normalize = false;                  // the weights of a token's experts are divided by their sum
  std::vector<int64_t> dense_layers = {};  // ascending, from 0: layers with a SwiGLU instead
  // output_router_logits: training adds a loss of the load, times router_aux_loss_coef. Kept for exports; this program
  // has no such loss for these models.
  bool load_loss = false;
  double load_weight = 0;

  bool has(int64_t layer) const;  // whether this layer has experts
  bool operator==(const DecoderExperts&) const = default;
};
// The most that our kernels hold.
constexpr int64_t kMostExperts = 1024, kMostPicks = 32;

// How a family's configuration describes its experts. Numbers are defaults for keys that are missing.
struct ExpertKeys {
  int64_t count = 0;        // num_experts or num_local_experts; 0: the family has none
  int64_t top_k = 0;        // num_experts_per_tok
  int64_t inner = 0;        // moe_intermediate_size; 0: intermediate_size is that of one expert
  bool normalizes = false;  // always; otherwise norm_topk_prob says so
  bool some_dense = false;  // decoder_sparse_step and mlp_only_layers make some layers dense
  double load_weight = 0;   // router_aux_loss_coef
};

// Which of its layers a family limits to a window.
enum class WindowRule {
  never,
  always,        // sliding_window, which has a default; null: none
  if_given,      // sliding_window, where it is there
  switched,      // sliding_window, if use_sliding_window is true; max_window_layers may leave out layers
  all_switched,  // sliding_window in all layers, if use_sliding_window is true
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
  double rms_norm_eps = 1e-6, rope_theta = 10000;
  bool tied = false;
  int64_t bos_id = -1, eos_id = -1;  // -1: none
  ExpertKeys experts = {};
};
std::span<const HfFamily> hf_families();
// Null for a model_type that is not read.
const HfFamily* find_hf_family(std::string_view model_type);
// Why a model_type that the library knows is not read; empty if there is nothing to say of it.
std::string_view why_not_read(std::string_view model_type);

// Targets of an adapter by the names that a family's layers have. With joined_weights q_proj, k_proj and v_proj
// together are qkv_proj, and gate_proj and up_proj are gate_up_proj. A list with only some of them keeps these names.
// With mixtral_names gate_proj, up_proj and down_proj are w1, w3 and w2.
std::vector<std::string> family_targets(const DecoderForm& form, const std::vector<std::string>& targets);

}  // namespace hrm
