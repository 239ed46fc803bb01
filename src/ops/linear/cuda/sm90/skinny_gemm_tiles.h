#pragma once
// Products of more than a few rows (ops/linear/cuda/skinny_gemm.h), where a weight is still read for too few of them to
// be worth more than its reading.

#include <cuda_runtime_api.h>

#include "ops/linear/cuda/skinny_gemm.h"

namespace hrm::ops::cuda::sm90 {

constexpr int64_t kTileRowsMost = 128;

// Without a norm; width a multiple of 8, of the weight and of what is in it. A weight in 8 bits is steady, and inner is
// then a multiple of 16. Sums in float32, in an order that the weight's shape decides, which differs from those of the
// other kernels. With pairs, 64 products at a time are summed with about 14 bits.
bool fits_tiles(const cuda::SkinnyGemm& params);
cudaError_t launch_tiles(const cuda::SkinnyGemm& params, cudaStream_t stream);
// Pairs, x's and those that are made, are for up to this many bfloat16 rows of a suitable width and weights in e4m3.
constexpr int64_t kPairsRowsMost = 48;
constexpr bool takes_pairs(int64_t width) {
  return width % 128 == 0;
}
constexpr bool fits_pairs(const cuda::SkinnyGemm& p) {
  return p.rows <= kPairsRowsMost && takes_pairs(p.inner) && p.element == Element::bf16 && p.scales != nullptr &&
         p.format == Weight8Format::e4m3;
}

// launch_tiles() of weights in 8 bits, and of those whose x is there in pairs.
cudaError_t launch_tiles8(const cuda::SkinnyGemm& params, cudaStream_t stream);
cudaError_t launch_tiles_pairs(const cuda::SkinnyGemm& params, cudaStream_t stream);

}  // namespace hrm::ops::cuda::sm90
