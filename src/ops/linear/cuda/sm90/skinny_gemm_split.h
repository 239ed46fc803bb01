#pragma once
// Products of a few rows (ops/linear/cuda/skinny_gemm.h) whose result is narrow and whose sums are long.

#include <cuda_runtime_api.h>

#include "ops/linear/cuda/skinny_gemm.h"

namespace hrm::ops::cuda::sm90 {

// A block for each eight columns, two of them on a multiprocessor at once: up to 2,048 columns all blocks run from the
// start. Below 1,024 summands not every warp of a cluster has some.
constexpr int64_t kSplitRows = 32, kSplitInner = 1024, kSplitWidth = 2048;

// Neither gated nor with a norm. Sums in an order that inner decides, but another one than that of
// launch(const SkinnyGemm&).
bool fits_split(const cuda::SkinnyGemm& params);
cudaError_t launch_split(const cuda::SkinnyGemm& params, cudaStream_t stream);

}  // namespace hrm::ops::cuda::sm90
