#pragma once
// What the files of 8-bit weights share.

#include <ATen/core/Tensor.h>

#include <tuple>

#include "hrm/ops/weight8.h"
#include "ops/common/optional_tensor.h"

namespace hrm::ops {

using Weight8Parts = std::tuple<at::Tensor, at::Tensor>;  // in the order of Weight8

inline Weight8 weight8_of(const at::Tensor& values, const at::Tensor& scales, const OptionalTensor& transposed,
                          const OptionalTensor& ones) {
  return {.values = values,
          .scales = scales,
          .transposed = transposed.value_or(at::Tensor()),
          .ones = ones.value_or(at::Tensor())};
}

void check_quantize_weight8(const at::Tensor& weight, at::ScalarType format);
void check_dequantize_weight8(const at::Tensor& out, const Weight8& from);
void check_linear_weight8(const at::Tensor& x, const Weight8& weight, const OptionalTensor& residual,
                          const OptionalTensor& workspace);

void check_linear_weight8_grad_x(const at::Tensor& grad, const Weight8& weight, const OptionalTensor& workspace);

// The largest value of the format.
double weight8_limit(at::ScalarType format);

// Dequantises and multiplies, on every device.
at::Tensor linear_weight8_dequantized(const at::Tensor& x, const Weight8& weight, const OptionalTensor& residual,
                                      const OptionalTensor& workspace);

at::Tensor linear_weight8_grad_x_dequantized(const at::Tensor& grad, const Weight8& weight,
                                             const OptionalTensor& workspace);

// The same with quantised rows, for an e4m3 weight. `product` is fp8_rows_product, or one that returns an undefined
// tensor where it cannot multiply; then so does this.
using RowsProduct = at::Tensor (*)(const at::Tensor& a, const at::Tensor& b, const at::Tensor& a_scales,
                                   const at::Tensor& b_scales, at::ScalarType dtype, const OptionalTensor& residual);
at::Tensor linear_weight8_by_rows(const at::Tensor& x, const Weight8& weight, const OptionalTensor& residual,
                                  RowsProduct product);
at::Tensor linear_weight8_grad_x_by_rows(const at::Tensor& grad, const Weight8& weight, const OptionalTensor& workspace,
                                         RowsProduct product);

namespace reference {

Weight8 quantize_weight8(const at::Tensor& weight, at::ScalarType format);
void dequantize_weight8_(const at::Tensor& out, const Weight8& from);

}  // namespace reference
}  // namespace hrm::ops
