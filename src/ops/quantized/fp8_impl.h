#pragma once
// What the files of fp8 share: the input checks and the plain ATen reference.

#include <optional>

#include "hrm/ops/fp8.h"
#include "ops/attention/attention_impl.h"

namespace hrm::ops {

// Throw c10::Error with the op's name and the shapes.
void check_quantize_fp8(const at::Tensor& x, const at::Tensor& slot);
void check_quantize_many_fp8(at::TensorList from, at::TensorList to, const at::Tensor& slots);
void check_add_fp8(const at::Tensor& a, const at::Tensor& b, const at::Tensor& slot);
void check_linear_fp8(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& x_slot,
                      const at::Tensor& weight_slot, at::ScalarType dtype);
void check_linear_swiglu_fp8(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& x_slot,
                             const at::Tensor& weight_slot, const at::Tensor& act_slot, at::ScalarType dtype);
void check_linear_rms_norm_fp8(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& x_slot,
                               const at::Tensor& weight_slot, const at::Tensor& residual, double eps,
                               const OptionalTensor& y_slot);
void check_attention_fp8(const at::Tensor& qkv, int64_t heads, const OptionalTensor& cos, const OptionalTensor& sin,
                         const at::Tensor& slot);
void check_fp8_update_scales(const at::Tensor& slots, const at::Tensor& history, double margin);

// These are built with the CUDA kernels only.
// For tests: only what every device with 8-bit products has.
void set_portable_fp8(bool portable);

namespace reference {

// Raises the slot's amax to the largest of the magnitudes.
void raise_amax(const at::Tensor& magnitudes, const at::Tensor& slot);
at::Tensor quantize_fp8(const at::Tensor& x, const at::Tensor& slot);
void quantize_fp8_(at::TensorList from, at::TensorList to, const at::Tensor& slots);
std::tuple<at::Tensor, at::Tensor> add_fp8(const at::Tensor& a, const at::Tensor& b, const at::Tensor& slot);
at::Tensor linear_fp8(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& x_slot,
                      const at::Tensor& weight_slot, at::ScalarType dtype);
at::Tensor linear_swiglu_fp8(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& x_slot,
                             const at::Tensor& weight_slot, const at::Tensor& act_slot, at::ScalarType dtype);
std::tuple<at::Tensor, at::Tensor> linear_rms_norm_fp8(const at::Tensor& x, const at::Tensor& weight,
                                                       const at::Tensor& x_slot, const at::Tensor& weight_slot,
                                                       const at::Tensor& residual, double eps,
                                                       const OptionalTensor& y_slot);
at::Tensor attention_fp8(const at::Tensor& qkv, int64_t heads, const OptionalTensor& cos, const OptionalTensor& sin,
                         const at::Tensor& slot);
void fp8_update_scales_(const at::Tensor& slots, const at::Tensor& history, double margin);

}  // namespace reference
}  // namespace hrm::ops
