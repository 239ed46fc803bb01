#pragma once
// The text of the TorchScript classes that language models are built of: what src/nn/ computes without gradient, in
// aten operations alone. Shapes: B rows, T positions, D width.

#include <string>

#include "hrm/models/decoder.h"
#include "hrm/nn/mamba2.h"
#include "hrm/nn/moe.h"

namespace hrm::checkpoint {

// What a stack of modern blocks does: which tensors travel to each of its blocks, and what attention sees.
enum class StackKind {
  causal,    // rotary positions; no later position
  windowed,  // rotary positions; a mask (T, T)
  encoder,   // rotary positions; all positions, or a mask (B, 1, 1, T)
  memory     // no positions; all
};
// "CausalStack" and so on, in front of the names of classes that differ.
std::string kind_name(StackKind kind);
// Parameters and arguments behind the first, with a comma in front.
std::string pass_parameters(StackKind kind);
std::string pass_arguments(StackKind kind);

// Methods of each class, as Module::define takes them. Members are called as in src/nn/.
// centred: the factor is 1 + weight.
std::string rms_norm_source(double eps, bool centred = false);
// Over each of `groups` parts of `width` values.
std::string grouped_rms_norm_source(double eps, int64_t width, int64_t groups);
std::string layer_norm_source(int64_t width);
// forward(x, ...): qkv_proj, o_proj, and with norms of q and k, for each head or over all of them, q_norm and k_norm.
std::string grouped_attention_source(const models::DecoderOptions& options, StackKind kind);
// forward(x, memory): q_proj, kv_proj, o_proj.
std::string cross_attention_source(const models::DecoderOptions& options);
// forward(h, ...): input_layernorm, self_attn, post_attention_layernorm, mlp; with `cross` also cross_layernorm and
// cross_attn, and `memory` behind h. With norms_behind: self_attn, post_attention_layernorm, mlp,
// post_feedforward_layernorm.
std::string transformer_block_source(StackKind kind, bool cross, bool norms_behind = false);
std::string gelu_source();  // up, down
// forward(x) of any shape (..., D): router, up (with SwiGLU gate_up), down; shared where there is one; choice_bias
// where there is one.
std::string experts_source(const nn::MoeOptions& options, int64_t width);
// forward(u, mask (B, T) or None): in_proj, conv1d, norm, out_proj, dt_bias, A_log, D; position by position.
std::string mamba2_mixer_source(const nn::Mamba2Options& options);
std::string mamba2_block_source();  // forward(r, mask): norm, mixer
// nn::MultiheadAttention: in_proj_weight, in_proj_bias, out_proj. self_attend(x, mask, causal), cross(x, memory).
std::string multihead_source(int64_t width, int64_t heads);
std::string classic_encoder_block_source();  // forward(x, mask): norm1, attn, norm2, ffn
std::string classic_decoder_block_source();  // forward(x, memory): self_attn, multihead_attn, linear1, linear2, norm1-3

}  // namespace hrm::checkpoint
