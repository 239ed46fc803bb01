#pragma once
// The border between the launcher, which knows tensors, and the kernel, which knows pointers.

#include <cuda_runtime_api.h>

#include <cstdint>

namespace hrm::ops::cuda {

// All steps of a phase. Shapes and symbols as in hrm/ops/geometric_relax.h; R rows, S slots, m, d, C.
struct GeometricRelax {
  const float* drive;       // (R, m)
  const float* offset;      // (R, m)
  const float* o;           // (R, d)
  const float* keys;        // (S, m)
  const float* key_norms;   // (S)
  const float* resilience;  // (S)
  const void* values;       // (S, d) float16
  const int64_t* filled;    // 0-dim, or null: all slots
  const float* metric;      // (m, m)
  const float* rates;       // (4)
  const void* readout;      // (C, d) float16, or null: a free phase
  const float* bias;        // (C)
  const int64_t* targets;   // (R)
  const float* signs;       // (R)
  float* next_offset;       // (R, m)
  float* next_o;            // (R, d)
  float* log_sum;           // (R)
  float* speed;             // (R)
  float* residual;          // (R)
  int rows, slots, coords, width, classes, steps;
  float kappa, gamma, retrieval_beta, cost_eps;
};

// Whether the kernel does this size on the current device: m <= 32, d <= 64, C <= 1024, tensor cores, a cluster's share
// of the slots in shared memory, and retrieval_beta and cost_eps above zero in float32. States, keys, values and R /
// 2^8 must be numbers that float16 holds.
bool fits(const GeometricRelax& params);

// Starts the kernel on the stream and returns the error of the launch.
cudaError_t launch(const GeometricRelax& params, cudaStream_t stream);

}  // namespace hrm::ops::cuda
