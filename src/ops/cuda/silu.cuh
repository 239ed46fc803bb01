#pragma once
// The gate of SwiGLU in float32, for values of type T. The fast forms of 16-bit types lose a few float32 roundings, far
// below one of the type.

#include "ops/cuda/common.cuh"

namespace hrm::ops::cuda {

// 1 / (1 + exp(-x)).
template <typename T>
__device__ inline float sigmoid(float x) {
  if constexpr (sizeof(T) == 4) {
    return 1.0f / (1.0f + expf(-x));
  } else {
    return __fdividef(1.0f, 1.0f + __expf(-x));
  }
}

// Plain ATen divides x by 1 + exp(-x). The products differ from that by a rounding of float32.
template <typename T>
__device__ inline float silu(float x) {
  if constexpr (sizeof(T) == 4) {
    return x / (1.0f + expf(-x));
  } else {
    return x * sigmoid<T>(x);
  }
}

// silu(gate) * up, rounded after each.
template <typename T>
__device__ inline T gated(float gate, float up) {
  return from_float<T>(to_float(from_float<T>(silu<T>(gate))) * up);
}

// The gradients of gate and up, each rounded once: silu'(x) = s (1 + x (1 - s)) with s = sigmoid(x).
template <typename T>
__device__ inline void gated_gradient(float gate, float up, float grad, T& grad_gate, T& grad_up) {
  const float s = sigmoid<T>(gate);
  grad_gate = from_float<T>(grad * up * s * (1.0f + gate * (1.0f - s)));
  grad_up = from_float<T>(grad * silu<T>(gate));
}

}  // namespace hrm::ops::cuda
