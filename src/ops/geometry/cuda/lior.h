#pragma once
// The border between the launcher, which knows tensors, and the kernel, which knows pointers.

#include <cuda_runtime_api.h>

#include <cstdint>

namespace hrm::ops::cuda {

// Contiguous; rows and axes are at least 1.
struct LiorStep {
  const float* v;           // (rows, axes)
  const float* metric;      // (axes) if diagonal, else (axes, axes) for each row or for all
  const float* resilience;  // (rows) or (1)
  float* action;            // (rows)
  float* speed;             // (rows)
  int64_t rows, axes;
  int64_t metric_stride;      // elements from one row's metric to the next one's; 0 where all rows share one
  int64_t resilience_stride;  // 1 or 0
  bool diagonal;
  float eps, dtau;
};

// Starts the kernel on the stream and returns the error of the launch.
cudaError_t launch(const LiorStep& params, cudaStream_t stream);

}  // namespace hrm::ops::cuda
