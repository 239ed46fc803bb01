#pragma once
// Shared declarations of attention within windows and documents.
//
//   hrm::masked_attention           the op that callers use
//   hrm::masked_attention_forward   the result, the logarithms of the softmax's sums, and LibTorch's state for its
//                                   backward pass (empty where the blocks computed it)
//   hrm::masked_attention_backward  the gradients of q, k and v from them

#include <tuple>

#include "hrm/ops/masked_attention.h"
#include "ops/common/optional_tensor.h"

namespace hrm::ops {

struct MaskedForward {
  at::Tensor out, sums, state;
};
using MaskedGradients = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

inline AttentionSpans spans_of(const OptionalTensor& starts, const OptionalTensor& offsets, int64_t window) {
  return {.window = window, .starts = starts.value_or(at::Tensor()), .offsets = offsets.value_or(at::Tensor())};
}

// Throws c10::Error with the op's name and the shapes.
void check_masked_attention(const char* op, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const AttentionSpans& spans);
// Whether masks of all pairs were asked for.
bool wants_plain_mask();

// Through the dispatcher.
MaskedForward masked_attention_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                       const AttentionSpans& spans);
MaskedGradients masked_attention_backward(const at::Tensor& grad_out, const at::Tensor& q, const at::Tensor& k,
                                          const at::Tensor& v, const MaskedForward& forward,
                                          const AttentionSpans& spans);

// Block by block of queries, in plain ATen on any device. `sums` are (B, Hkv, Hq / Hkv, T); those of LibTorch's kernels
// have three dimensions.
namespace blocks {

MaskedForward masked_attention_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                       const AttentionSpans& spans);
MaskedGradients masked_attention_backward(const at::Tensor& grad_out, const at::Tensor& q, const at::Tensor& k,
                                          const at::Tensor& v, const MaskedForward& forward,
                                          const AttentionSpans& spans);

}  // namespace blocks

namespace reference {

// (T, T) or (B, 1, T, T) bool: the positions that each position sees.
at::Tensor causal_mask(int64_t positions, const AttentionSpans& spans, at::Device device);
// By that mask, with keys and values repeated for groups. Differentiable if gradients are recorded.
at::Tensor masked_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionSpans& spans);

}  // namespace reference
}  // namespace hrm::ops
