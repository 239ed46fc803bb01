#pragma once
// The interface between the launcher, which sees tensors, and the kernels, which see pointers.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/element.h"

namespace hrm::ops::cuda {

// The longest sequence of the short-sequence kernels; a head's queries, keys and values are in shared memory.
constexpr int kAttentionMaxLength = 128;

// qkv: (batch, length, 3, heads, head_dim) contiguous, not rotated. cos, sin: (length, head_dim / 2), or both null for
// no rotation. All pointers are aligned to 16 bytes. head_dim 32 or 64, length 1 to kAttentionMaxLength, bf16 or f16.
// batch * heads must be below 2^31.
struct AttentionForward {
  const void* qkv;
  const float* cos;
  const float* sin;
  void* out;   // (batch, length, heads, head_dim)
  float* lse;  // (batch, heads, length), natural log-sum-exp; null: not written
  int64_t batch;
  int heads;
  int length;
  int head_dim;
  float scale;
  Element element;
  // Hopper only: `out` receives the rounded results in e4m3 under this slot (ops/quantized/cuda/fp8.h).
  float* out_slot = nullptr;
};

struct AttentionBackward {
  const void* grad_out;  // as out
  const void* qkv;
  const void* out;
  const float* lse;
  const float* cos;
  const float* sin;
  void* grad_qkv;  // as qkv; every element is written
  int64_t batch;
  int heads;
  int length;
  int head_dim;
  float scale;
  Element element;
};

// Writes q and k of `from`, rotated by their positions, to `to`, and copies v. `to` may be `from`; v is then left
// alone. Any length and any even head_dim.
struct RotateQkv {
  const void* from;  // (batch, length, 3, heads, head_dim) contiguous
  void* to;
  const float* cos;  // (length, head_dim / 2)
  const float* sin;
  int64_t batch;
  int64_t length;
  int heads;
  int head_dim;
  Element element;
};

// The gradient of `from`: rotates the gradients of q and k back and copies that of v. Each gradient is
// (batch, heads, length, head_dim) with its own element strides, the last one 1.
struct RotateQkvBackward {
  const void* grads[3];
  int64_t batch_stride[3];
  int64_t head_stride[3];
  int64_t row_stride[3];
  void* grad_qkv;    // (batch, length, 3, heads, head_dim) contiguous
  const float* cos;  // or both null: copy only
  const float* sin;
  int64_t batch;
  int64_t length;
  int heads;
  int head_dim;
  Element element;
};

// Queue the kernel on the stream and return the launch error. No atomics; every sum has a fixed order.
cudaError_t launch(const AttentionForward& params, cudaStream_t stream);
cudaError_t launch(const AttentionBackward& params, cudaStream_t stream);
cudaError_t launch(const RotateQkv& params, cudaStream_t stream);
cudaError_t launch(const RotateQkvBackward& params, cudaStream_t stream);

}  // namespace hrm::ops::cuda
