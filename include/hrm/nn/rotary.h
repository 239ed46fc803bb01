#pragma once
// Rotary position embedding (Su et al., "RoFormer", arXiv 2104.09864) in GPT-NeoX's half-split form: dimension i is
// paired with dimension i + head_dim/2.

#include <ATen/core/Tensor.h>

#include <tuple>

#include "hrm/formats/rope.h"

namespace hrm::nn {

// cos and sin of position * theta^(-2i/head_dim), both (positions, head_dim/2) float32. Undefined tensors disable the
// rotation. Built once per model and shared by its layers; not part of a checkpoint.
struct RotaryTable {
  at::Tensor cos;
  at::Tensor sin;

  bool defined() const { return cos.defined(); }
};

// How far a pair turns from one position to the next, (head_dim / 2) float32 on the CPU. Without
// scaling.attention_factor, which the tables are multiplied by.
at::Tensor rotary_frequencies(int64_t head_dim, double theta, const RopeScaling& scaling = {});

// `scaling`: stretches the positions, in the float32 steps of the transformers library.
RotaryTable make_rotary_table(int64_t positions, int64_t head_dim, double theta, at::Device device,
                              const RopeScaling& scaling = {});

// Splits the output of a qkv projection and rotates q and k by their positions.
//    qkv: (B, L, 3 * heads * head_dim), contiguous: all heads of q, then all of k, then all of v.
// Returns q, k and v as views (B, heads, L, head_dim) of qkv's memory: qkv is overwritten and must not be read again.
// The rotation is computed in float32. Differentiable.
std::tuple<at::Tensor, at::Tensor, at::Tensor> split_and_rotate_(const at::Tensor& qkv, int64_t heads,
                                                                 const RotaryTable& table);

}  // namespace hrm::nn
