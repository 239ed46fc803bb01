#pragma once
// The border between the launcher, which knows tensors, and the kernels, which know pointers.

#include <cuda_runtime_api.h>

#include <cstdint>

namespace hrm::ops::cuda {

constexpr int64_t kNormElementsPerBlock = 16384;

enum class NormType : int { one, two, infinity };

struct GradNormParams {
  const float* flat;
  int64_t size;     // elements, at least 1
  double* partial;  // one for each kNormElementsPerBlock elements
  int64_t num_partial;
  float max_norm;
  NormType type;
  const float* loss_scale;  // or null
  float* norm;
  float* coef;
  float* nonfinite;
  float* skip;     // or null
  double* report;  // 3 elements, or null
  double* exact;   // the norm before it is rounded; then nothing else is written. Or null
};

// Sums of the blocks, then the results from them: two kernels.
cudaError_t launch(const GradNormParams& params, cudaStream_t stream);

}  // namespace hrm::ops::cuda
