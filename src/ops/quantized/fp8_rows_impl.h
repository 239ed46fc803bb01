#pragma once
// What the files of fp8_rows share: the input checks and the plain ATen reference.

#include <tuple>

#include "hrm/ops/fp8_rows.h"
#include "ops/common/optional_tensor.h"

namespace hrm::ops {

using Fp8Rows = std::tuple<at::Tensor, at::Tensor>;  // values, scales

// Throw c10::Error with the op's name and the shapes.
void check_quantize_fp8_rows(const at::Tensor& x, const OptionalTensor& factors);
void check_transpose_fp8(const at::Tensor& out, const at::Tensor& ones, const at::Tensor& values);
void check_fp8_rows_product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& a_scales,
                            const at::Tensor& b_scales, at::ScalarType dtype, const OptionalTensor& residual);

// These are built with the CUDA kernels only.
// Whether the library multiplies such rows on this device, with a result of this dtype.
bool library_multiplies_fp8_rows(at::Device device, at::ScalarType dtype);
// As fp8_rows_product, by the library alone; undefined where it does not multiply these.
at::Tensor fp8_rows_product_by_library(const at::Tensor& a, const at::Tensor& b, const at::Tensor& a_scales,
                                       const at::Tensor& b_scales, at::ScalarType dtype,
                                       const OptionalTensor& residual);

namespace reference {

Fp8Rows quantize_fp8_rows(const at::Tensor& x, const OptionalTensor& factors);
void transpose_fp8_(const at::Tensor& out, const at::Tensor& ones, const at::Tensor& values);
at::Tensor fp8_rows_product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& a_scales,
                            const at::Tensor& b_scales, at::ScalarType dtype, const OptionalTensor& residual);

}  // namespace reference
}  // namespace hrm::ops
