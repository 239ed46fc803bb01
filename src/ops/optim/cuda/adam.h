#pragma once
// The border between the launcher, which knows tensors, and the kernel, which knows pointers.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "hrm/ops/adam_rule.h"

namespace hrm::ops::cuda {

// Tensors of one launch. Everything below travels as kernel arguments, of which CUDA allows 4 KiB on every GPU.
constexpr int kMaxTensors = 56;
constexpr int64_t kElementsPerBlock = 2048;

struct AdamParams {
  float* param[kMaxTensors];
  const float* grad[kMaxTensors];
  float* exp_avg[kMaxTensors];           // null where the rule has none
  float* exp_avg_sq[kMaxTensors];        // the same
  float* average[kMaxTensors];           // null: none; all or none
  uint16_t* copy[kMaxTensors];           // bfloat16 or float16; null: none
  int64_t size[kMaxTensors];             // elements
  int32_t first_block[kMaxTensors + 1];  // block b works on the tensor i with first_block[i] <= b < first_block[i + 1]
  float weight_decay[kMaxTensors];
  float lr_factor[kMaxTensors];
  const float* step;  // updates done before this one
  const float* lr;
  const float* grad_scale;
  const float* skip;  // non-zero: do nothing
  double2* partial;   // a block's sums of (new - old)^2 and old^2, or null
  int32_t count;      // tensors
  AdamRule rule;
  bool half_copies;  // float16, otherwise bfloat16
  float beta1;
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float log_beta1;  // natural logarithm
  float log_beta2;
  float eps;
  float one_minus_decay;  // of the averages
};
static_assert(sizeof(AdamParams) <= 4096);

// Updates the listed tensors: first_block[count] blocks.
cudaError_t launch(const AdamParams& params, cudaStream_t stream);

struct AdamFinish {
  float* step;
  const float* skip;
  double* update_ratio;    // or null: not wanted
  bool squares;            // two values: the sums that the ratio is made of
  const double2* partial;  // of all launches
  int64_t num_partial;
};
// step += 1 unless skip; the ratio, or what it is made of, from the partial sums. After the updates, which read the old
// step.
cudaError_t launch(const AdamFinish& params, cudaStream_t stream);

}  // namespace hrm::ops::cuda
