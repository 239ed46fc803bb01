#pragma once
// Parameters of the kernels that merge adapters into weights. No torch headers.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/element.h"

namespace hrm::ops::cuda {

// Rows of a launch. Everything below travels as kernel arguments, of which CUDA allows 4 KiB on every GPU.
constexpr int kMostMergeSpans = 88;
constexpr int kMostMergeRank = 64;

// Neighbouring rows of a layer's weight: those of a slice, or some between slices, which are copied.
struct LoraMergeSpan {
  void* merged;        // (rows, width); may be the weight
  const void* weight;  // the same
  const void* A;       // (rank, width), or null: copy
  const void* B;       // (rows, rank)
  int32_t rows, width;
};

// merged = weight + scale B A of each span. All that takes time is to read and write the weights once.
struct LoraMerge {
  LoraMergeSpan span[kMostMergeSpans];
  int32_t first_block[kMostMergeSpans + 1];  // launch() fills it: block b works on the span i with first_block[i] <= b
                                             // < first_block[i + 1]
  int32_t spans, rank;
  float scale;
  bool by_products;  // on tensor cores: all spans are has_products()
  Element element;
};
static_assert(sizeof(LoraMerge) <= 4096);

// Whether tensor cores do it: 16-bit elements, pointers aligned to 16 bytes, rows of a multiple of 16 bytes. Compute
// capability 8.0.
bool has_products(const LoraMergeSpan& span, int rank, Element element);
// Of ranks up to kMostMergeRank, and without an empty span.
cudaError_t launch(const LoraMerge& p, cudaStream_t stream);

}  // namespace hrm::ops::cuda
