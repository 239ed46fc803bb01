#pragma once
// Products of a few rows with a weight, as decoding has them: what takes time is reading the weight once.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/element.h"
#include "ops/linear/cuda/e4m3_pairs.h"
#include "ops/quantized/cuda/weight8.h"

namespace hrm::ops::cuda {

// What an adapter adds to a product before gate and residual: scale u_i B_i^T to the columns of slice i
// (hrm/ops/lora.h).
constexpr int kSkinnySlicesMost = 8;
struct SkinnyAdapterSlice {
  int out, first, columns;  // columns out .. out + columns of the product, rows of B from `first`
};
struct SkinnyAdapter {
  const void* u;     // (rows, slices * rank)
  const void* B;     // (rows of the slices, rank)
  int rank, slices;  // 0: no adapter
  float scale;
  SkinnyAdapterSlice slice[kSkinnySlicesMost];
};
// Whole runs of 16 bytes, and no column in two slices.
constexpr bool fits(const SkinnyAdapter& a) {
  if (a.slices == 0) return true;
  bool good = a.slices <= kSkinnySlicesMost && a.rank > 0 && a.rank % 8 == 0;
  for (int i = 0; good && i < a.slices; ++i) {
    const SkinnyAdapterSlice& s = a.slice[i];
    good = s.out % 4 == 0 && s.columns % 4 == 0;
    for (int j = 0; good && j < i; ++j) {
      good = s.out >= a.slice[j].out + a.slice[j].columns || a.slice[j].out >= s.out + s.columns;
    }
  }
  return good;
}

// out = x weight^T (+ residual), or, gated, silu of the first `width` products times the others, rounded as swiglu
// rounds. With a norm x's rows are first normalised and rounded as weighted_rms_norm does it. Sums in float32, in an
// order that inner alone decides. The kernel of sm90/skinny_gemm_split.h has another one; which of the two is taken,
// the weight's shape and what stands around decide. So a row's result does not depend on the others. Contiguous rows;
// pointers aligned to 16 bytes; 16-bit elements. Needs compute capability 8.0.
struct SkinnyGemm {
  const void* x;         // (rows, inner)
  const void* weight;    // (width, inner), gated (2 width, inner)
  const void* residual;  // (rows, width) or null; not gated
  const float* norm;     // (inner) or null
  void* out;             // (rows, width)
  int64_t rows, inner, width;
  float eps;  // of the norm, also of the one in front
  // By tiles alone (sm90/skinny_gemm_tiles.h), null elsewhere: what a norm that follows needs, out times its factors
  // and sums of out's squares, and the same of the norm in front, whose x has been multiplied with its factors already.
  const float* next_norm;  // (width)
  void* scaled;            // (rows, width)
  float* squares;          // (rows, square_parts(width))
  const float* x_squares;  // (rows, square_parts(inner))
  // x and the input of the next product, out or else `scaled`, in pairs; null values: not there, or not wanted.
  E4m3Pairs x_pairs, pairs;
  // A weight in 8 bits (hrm/ops/weight8.h), also by tiles alone: `weight` is bytes. Null: a weight of x's type.
  const float* scales;  // (width), gated (2 width)
  Weight8Format format;
  SkinnyAdapter adapter;  // by tiles alone
  bool gated;
  bool steady;  // the kernel queued before does not write the weight: it is read while that one still runs
  Element element;
};

// Sums of squares that tiles make of a row.
constexpr int64_t square_parts(int64_t width) {
  return (width + 63) / 64;
}

constexpr int64_t kSkinnyRows = 64, kFewNormedRows = 8;
// Elements of x whose norm fits into shared memory.
constexpr int64_t kNormedElements = int64_t{40} << 10;
constexpr bool fits(const SkinnyGemm& p) {
  return p.rows >= 1 && p.rows <= (p.norm == nullptr ? kSkinnyRows : kFewNormedRows) && p.inner % 8 == 0 &&
         p.inner > 0 && p.inner <= INT32_MAX / 2 && p.width > 0 && p.width <= INT32_MAX && p.element != Element::f32 &&
         p.next_norm == nullptr && p.x_squares == nullptr && p.scales == nullptr && p.adapter.slices == 0 &&
         (p.norm == nullptr || p.rows * p.inner <= kNormedElements);
}
// Starts the kernel on the stream and returns the error of the launch.
cudaError_t launch(const SkinnyGemm& params, cudaStream_t stream);

}  // namespace hrm::ops::cuda
