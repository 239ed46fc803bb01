#pragma once
// The border between the launcher, which knows tensors, and the kernel, which knows pointers.

#include <cuda_runtime_api.h>

#include <cstdint>

namespace hrm::ops::cuda {

// Tensors of one launch. Everything below travels as kernel arguments, of which CUDA allows 4 KiB on every GPU.
constexpr int kMaxTensors = 64;
constexpr int64_t kElementsPerBlock = 16384;

struct AdamAtan2Params {
  float* param[kMaxTensors];
  const float* grad[kMaxTensors];
  float* exp_avg[kMaxTensors];
  float* exp_avg_sq[kMaxTensors];
  int64_t size[kMaxTensors];             // elements
  int32_t first_block[kMaxTensors + 1];  // block b works on the tensor i with first_block[i] <= b < first_block[i + 1]
  float weight_decay[kMaxTensors];
  int32_t count;      // tensors
  const float* step;  // updates done, this one included
  const float* lr;
  const float* grad_scale;
  const float* skip;  // non-zero: do nothing
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float log_beta1;  // natural logarithm
  float log_beta2;
};
static_assert(sizeof(AdamAtan2Params) <= 4096);

// step += 1 unless skip. To be launched before the updates that read it, on the same stream.
cudaError_t launch_advance(float* step, const float* skip, cudaStream_t stream);
// Updates the listed tensors: first_block[count] blocks.
cudaError_t launch(const AdamAtan2Params& params, cudaStream_t stream);

}  // namespace hrm::ops::cuda
