#pragma once
// What the files of fp8_linear share: the input checks and the plain ATen reference.

#include "hrm/ops/fp8_linear.h"
#include "ops/common/optional_tensor.h"

namespace hrm::ops {

// Throw c10::Error with the op's name and the shapes.
void check_wide_slot(const char* op, const char* name, const at::Tensor& slot, const at::Tensor& like);
void check_fp8_raise_amax(const at::Tensor& x, const at::Tensor& slot);
void check_quantize_fp8_weights(at::TensorList weights, at::TensorList values, at::TensorList transposed,
                                const at::Tensor& slots, at::ScalarType compute);
void check_fp8_scale_now(const at::Tensor& x, const at::Tensor& slot, double margin);
void check_quantize_fp8_pair(const at::Tensor& x, const OptionalTensor& values, const OptionalTensor& transposed,
                             const at::Tensor& slot);
void check_fp8_product(const char* op, const at::Tensor& a, const at::Tensor& b, const at::Tensor& a_slot,
                       const at::Tensor& b_slot);
void check_fp8_residual(const at::Tensor& a, const at::Tensor& b, at::ScalarType dtype, const OptionalTensor& residual);
void check_fp8_accumulate(const at::Tensor& grad, const at::Tensor& a, const at::Tensor& b, const at::Tensor& a_slot,
                          const at::Tensor& b_slot);

// The terms of a sum that tensor cores may keep to themselves.
constexpr int64_t kFp8FastTerms = 2048;

// The op behind both functions of the header: writes what is there.
void quantize_fp8_pair_into(const at::Tensor& x, const OptionalTensor& values, const OptionalTensor& transposed,
                            const at::Tensor& slot);

// Made of the other ops, on any device; without gradients.
at::Tensor fp8_linear_forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& weight_slot,
                              const at::Tensor& x_slot, const at::Tensor& grad_slot, bool e5m2,
                              const at::Tensor& master, const OptionalTensor& grad_weight, std::optional<double> margin,
                              const OptionalTensor& residual, bool x_is_kept, const OptionalTensor& weight_t);

namespace reference {

void fp8_raise_amax_(const at::Tensor& x, const at::Tensor& slot);
at::Tensor fp8_scale_now(const at::Tensor& x, const at::Tensor& slot, double margin);
void quantize_fp8_weights_(at::TensorList weights, at::TensorList values, at::TensorList transposed,
                           const at::Tensor& slots, at::ScalarType compute);
void quantize_fp8_pair_(const at::Tensor& x, const OptionalTensor& values, const OptionalTensor& transposed,
                        const at::Tensor& slot);
at::Tensor fp8_product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& a_slot, const at::Tensor& b_slot,
                       at::ScalarType dtype, const OptionalTensor& residual = std::nullopt);
void fp8_accumulate_(const at::Tensor& grad, const at::Tensor& a, const at::Tensor& b, const at::Tensor& a_slot,
                     const at::Tensor& b_slot);

}  // namespace reference
}  // namespace hrm::ops
