#include "hrm/ops/fp8_rows.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include "ops/common/op.h"
#include "ops/quantized/fp8_rows_impl.h"

namespace hrm::ops {
namespace {

bool is_e4m3_matrix(const at::Tensor& tensor) {
  return tensor.dim() == 2 && tensor.scalar_type() == at::kFloat8_e4m3fn && tensor.is_contiguous();
}

bool are_floats(const at::Tensor& tensor, int64_t count, const at::Tensor& like) {
  return tensor.dim() == 1 && tensor.size(0) == count && tensor.scalar_type() == at::kFloat && tensor.is_contiguous() &&
         tensor.device() == like.device();
}

bool is_wide_float(at::ScalarType type) {
  return at::isFloatingType(type) && c10::elementSize(type) > 1;
}

using RowsQuantizeOp = Fp8Rows(const at::Tensor&, const OptionalTensor&);
using RowsTransposeOp = void(const at::Tensor&, const at::Tensor&, const at::Tensor&);
using RowsProductOp = at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                 at::ScalarType, const OptionalTensor&);

}  // namespace

void check_quantize_fp8_rows(const at::Tensor& x, const OptionalTensor& factors) {
  constexpr const char* kOp = "hrm::quantize_fp8_rows";
  TORCH_CHECK(x.dim() == 2 && is_wide_float(x.scalar_type()), kOp,
              ": x must be a matrix of float32, bfloat16 or float16, got ", x.scalar_type(), " of ", x.sizes());
  TORCH_CHECK(!factors || are_floats(*factors, x.size(1), x), kOp, ": factors of x of ", x.sizes(), " must be ",
              x.size(1), " contiguous float32 on ", x.device(), ", got ", factors ? factors->scalar_type() : at::kFloat,
              " of ", factors ? factors->sizes() : at::IntArrayRef());
}

void check_transpose_fp8(const at::Tensor& out, const at::Tensor& ones, const at::Tensor& values) {
  constexpr const char* kOp = "hrm::transpose_fp8_";
  TORCH_CHECK(is_e4m3_matrix(values) && is_e4m3_matrix(out) && out.size(0) == values.size(1) &&
                  out.size(1) == values.size(0) && out.device() == values.device(),
              kOp,
              ": values and out must be contiguous matrices of Float8_e4m3fn, one of the other's shape transposed, ",
              "got ", values.scalar_type(), " of ", values.sizes(), " and ", out.scalar_type(), " of ", out.sizes());
  TORCH_CHECK(are_floats(ones, values.size(1), values), kOp, ": ones of values of ", values.sizes(), " must be ",
              values.size(1), " contiguous float32 on ", values.device(), ", got ", ones.scalar_type(), " of ",
              ones.sizes());
}

void check_fp8_rows_product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& a_scales,
                            const at::Tensor& b_scales, at::ScalarType dtype, const OptionalTensor& residual) {
  constexpr const char* kOp = "hrm::fp8_rows_product";
  TORCH_CHECK(is_e4m3_matrix(a) && is_e4m3_matrix(b) && a.size(1) == b.size(1) && a.device() == b.device(), kOp,
              ": a (m, k) and b (n, k) must be contiguous matrices of Float8_e4m3fn on one device, got ",
              a.scalar_type(), " of ", a.sizes(), " and ", b.scalar_type(), " of ", b.sizes());
  TORCH_CHECK(are_floats(a_scales, a.size(0), a) && are_floats(b_scales, b.size(0), a), kOp,
              ": a_scales and b_scales must be contiguous float32, one for each row of a (", a.sizes(), ") and b (",
              b.sizes(), "), got ", a_scales.scalar_type(), " of ", a_scales.sizes(), " and ", b_scales.scalar_type(),
              " of ", b_scales.sizes());
  TORCH_CHECK(is_wide_float(dtype), kOp, ": the result must be float32, bfloat16 or float16, got ", dtype, " (a of ",
              a.sizes(), ")");
  TORCH_CHECK(!residual || (residual->sizes() == at::IntArrayRef({a.size(0), b.size(0)}) &&
                            residual->scalar_type() == dtype && residual->device() == a.device()),
              kOp, ": residual must be ", dtype, " of (m, n) for a of ", a.sizes(), " and b of ", b.sizes(), ", got ",
              residual ? residual->scalar_type() : dtype, " of ", residual ? residual->sizes() : at::IntArrayRef());
}

Fp8Rows quantize_fp8_rows(const at::Tensor& x, const OptionalTensor& factors) {
  static const Op<RowsQuantizeOp> op("hrm::quantize_fp8_rows");
  return op(x, factors);
}

void transpose_fp8_(const at::Tensor& out, const at::Tensor& ones, const at::Tensor& values) {
  static const Op<RowsTransposeOp> op("hrm::transpose_fp8_");
  op(out, ones, values);
}

at::Tensor transposed_fp8(const at::Tensor& values) {
  TORCH_CHECK(values.dim() == 2, "hrm::transpose_fp8_: values must be a matrix, got ", values.sizes());
  at::Tensor out = at::empty({values.size(1), values.size(0)}, values.options());
  transpose_fp8_(out, at::empty({values.size(1)}, values.options().dtype(at::kFloat)), values);
  return out;
}

at::Tensor fp8_rows_product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& a_scales,
                            const at::Tensor& b_scales, at::ScalarType dtype, const OptionalTensor& residual) {
  static const Op<RowsProductOp> op("hrm::fp8_rows_product");
  return op(a, b, a_scales, b_scales, dtype, residual);
}

namespace {

Fp8Rows quantize_fp8_rows_cpu(const at::Tensor& x, const OptionalTensor& factors) {
  check_quantize_fp8_rows(x, factors);
  return reference::quantize_fp8_rows(x, factors);
}

void transpose_fp8_cpu(const at::Tensor& out, const at::Tensor& ones, const at::Tensor& values) {
  check_transpose_fp8(out, ones, values);
  reference::transpose_fp8_(out, ones, values);
}

at::Tensor fp8_rows_product_cpu(const at::Tensor& a, const at::Tensor& b, const at::Tensor& a_scales,
                                const at::Tensor& b_scales, at::ScalarType dtype, const OptionalTensor& residual) {
  check_fp8_rows_product(a, b, a_scales, b_scales, dtype, residual);
  return reference::fp8_rows_product(a, b, a_scales, b_scales, dtype, residual);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(hrm, m) {
  m.def("quantize_fp8_rows(Tensor x, Tensor? factors) -> (Tensor values, Tensor scales)");
  m.def("transpose_fp8_(Tensor(a!) out, Tensor(b!) ones, Tensor values) -> ()");
  m.def(
      "fp8_rows_product(Tensor a, Tensor b, Tensor a_scales, Tensor b_scales, ScalarType dtype, Tensor? residual) -> "
      "Tensor");
}

TORCH_LIBRARY_IMPL(hrm, CPU, m) {
  m.impl("quantize_fp8_rows", &quantize_fp8_rows_cpu);
  m.impl("transpose_fp8_", &transpose_fp8_cpu);
  m.impl("fp8_rows_product", &fp8_rows_product_cpu);
}

TORCH_LIBRARY_IMPL(hrm, Autograd, m) {
  for (const char* op : {"quantize_fp8_rows", "transpose_fp8_", "fp8_rows_product"}) {
    m.impl(op, torch::autograd::autogradNotImplementedFallback());
  }
}

}  // namespace hrm::ops
