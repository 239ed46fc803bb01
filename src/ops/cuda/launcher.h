#pragma once
// What the launchers share.

#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAStream.h>

#include <cstdint>
#include <optional>

#include "hrm/ops/backend.h"
#include "ops/cuda/element.h"

namespace hrm::ops::cuda {

inline bool has_element(at::ScalarType type) {
  return type == at::kFloat || type == at::kBFloat16 || type == at::kHalf;
}

// Whether a kernel of ours runs on this dtype; else (float64 in tests, ops.backend=reference) the reference does.
inline bool use_kernel(const at::Tensor& tensor) {
  return backend() == Backend::fused && has_element(tensor.scalar_type());
}

// Of a dtype that has_element().
inline Element element_of(at::ScalarType type) {
  if (type == at::kBFloat16) return Element::bf16;
  return type == at::kHalf ? Element::f16 : Element::f32;
}
inline Element element_of(const at::Tensor& tensor) {
  return element_of(tensor.scalar_type());
}

// The current stream of the current device.
inline cudaStream_t current_stream() {
  return c10::cuda::getCurrentCUDAStream();
}

// The data of a float32 tensor; null where there is none.
inline const float* optional_floats(const std::optional<at::Tensor>& tensor) {
  return tensor ? tensor->const_data_ptr<float>() : nullptr;
}

inline bool is_aligned(const at::Tensor& tensor) {
  return tensor.is_contiguous() && reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % 16 == 0;
}

// Contiguous and aligned to 16 bytes, as the TMA and the library need it; a copy where the tensor is not.
inline at::Tensor aligned_rows(const at::Tensor& tensor) {
  at::Tensor rows = tensor.contiguous();
  return reinterpret_cast<uintptr_t>(rows.const_data_ptr()) % 16 == 0 ? rows : rows.clone();
}

}  // namespace hrm::ops::cuda
