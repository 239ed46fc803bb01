#pragma once
// Causal attention that is limited to a sliding window (Beltagy et al., "Longformer", arXiv 2004.05150), to documents
// that share a row, or to both. Work and memory grow with what positions see; no T x T mask is built.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace hrm::ops {

// Which positions each of the T positions of B rows sees: itself, and earlier ones within these limits.
struct AttentionSpans {
  int64_t window = 0;      // only positions less than `window` back; 0: all
  at::Tensor starts = {};  // (B, T) int32: where the document of each position begins in its row; undefined: at 0
  // (C, S + 1) int32, for GPU kernels: the rows in C equal parts, and of each where its up to S documents begin in its
  // B / C rows written one behind the other. Places without a document hold the end.
  at::Tensor offsets = {};

  // Whether they hide anything from rows of T positions.
  bool limit(int64_t positions) const { return (window > 0 && window < positions) || starts.defined(); }
};

// The spans of documents. documents: (B, T) int32 or int64; a document is a run of equal numbers. most: the most
// documents in a row, 0 if unknown. On a GPU it bounds the work; a smaller number than there are documents gives wrong
// results unnoticed. A CPU does not need it. Undefined documents: the window alone. No gradient. Plain ATen; can be
// captured.
AttentionSpans attention_spans(const at::Tensor& documents, int64_t most, int64_t window);

// The mask of all pairs of T positions, (T, T) or (B, 1, T, T) bool, for scaled_dot_product_attention: true for what is
// seen. Undefined unless AttentionBackend::sdpa or Backend::reference asks for masks, and the spans hide something.
at::Tensor plain_mask(int64_t positions, const AttentionSpans& spans, at::Device device);

// softmax(q k^T / sqrt(hd)) v over what the spans show.
//   q: (B, T, Hq, hd); k, v: (B, T, Hkv, hd), where Hkv divides Hq: not repeated for the queries of a group. One dtype:
//   float32, bfloat16, float16, float64. Any strides.
//   Returns (B, T, Hq, hd), contiguous.
//
// 16-bit tensors on a GPU of compute capability 8.0 or later take LibTorch's flash attention (Dao, arXiv 2307.08691),
// by variable lengths with documents, for hd a multiple of 8 up to 256 (192 where the GPU's shared memory is small).
// Everything else takes blocks of queries in plain ATen: O(T (block + reach)) with a window, and on a CPU with
// documents; on a GPU with documents alone each block reads all keys before it. Scores are float32 (float64 for
// float64).
//
// Differentiable in q, k and v; saves them, the result and a float32 sum for each head and position. With
// AttentionBackend::sdpa and Backend::reference it is scaled_dot_product_attention with a T x T mask. Deterministic but
// for flash attention's gradients, as in LibTorch. Runs on the current stream; can be captured. Throws c10::Error that
// names the shapes.
at::Tensor masked_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionSpans& spans);

}  // namespace hrm::ops
