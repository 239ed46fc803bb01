#pragma once
// The border between the launcher, which knows tensors, and the kernels, which know pointers.

#include <cuda_runtime_api.h>

namespace hrm::ops::cuda {

constexpr int kMostRotorAxes = 64;  // n: an n x n matrix stays in shared memory

// Contiguous; 1 <= axes <= kMostRotorAxes; angles is 0 where axes is 1.
struct RotorMatrix {
  const float* theta;  // (angles)
  float* q;            // (axes, axes)
  int angles, axes;
};

struct RotorAngleGradient {
  const float* theta;  // (angles)
  const float* outer;  // (axes, axes)
  float* gradient;     // (angles)
  int angles, axes;
};

// Start one block on the stream and return the error of the launch.
cudaError_t launch(const RotorMatrix& params, cudaStream_t stream);
cudaError_t launch(const RotorAngleGradient& params, cudaStream_t stream);

}  // namespace hrm::ops::cuda
