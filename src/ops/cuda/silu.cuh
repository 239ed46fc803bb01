#pragma once
// The gate of SwiGLU in float32, for values of type T. The fast forms of 16-bit types lose a few float32 roundings, far
// below one of the type.

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

}  // namespace hrm::ops::cuda
