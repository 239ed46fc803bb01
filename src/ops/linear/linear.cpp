#include "hrm/ops/linear.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include <algorithm>
#include <vector>

#include "hrm/build_config.h"
#include "hrm/ops/backend.h"
#include "hrm/ops/linear_weight_gradient.h"
#include "hrm/ops/stale_gradient.h"
#include "ops/common/accumulate_type.h"
#include "ops/common/matmul_cpu.h"
#include "ops/common/op.h"
#include "ops/common/sizes.h"
#include "ops/linear/linear_impl.h"

#if HRM_WITH_CUDA
#include "ops/adapters/cuda/lora_product.h"
#include "ops/linear/cuda/blaslt.h"
#endif

namespace hrm::ops {
namespace {

// out = a @ b (+ out) by cuBLASLt with a tuned algorithm; false, and nothing written, where that is not to be.
bool tuned_product(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool accumulates) {
#if HRM_WITH_CUDA
  return out.is_cuda() && cuda::tuned_gemm(out, a, b, accumulates);
#else
  (void)out, (void)a, (void)b, (void)accumulates;
  return false;
#endif
}

// out += a @ b by the kernel for few summands; false as above.
bool low_rank_gemm(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
#if HRM_WITH_CUDA
  return out.is_cuda() && cuda::add_low_rank_gemm(out, a, b);
#else
  (void)out, (void)a, (void)b;
  return false;
#endif
}

}  // namespace

void check_linear(const at::Tensor& x, const at::Tensor& weight_compute, const at::Tensor& master,
                  const OptionalTensor& bias, const OptionalTensor& grad_weight, const OptionalTensor& grad_bias) {
  TORCH_CHECK(weight_compute.dim() == 2 && x.dim() >= 1 && x.size(-1) == weight_compute.size(1),
              "hrm::linear: x (..., in) and weight (out, in) do not fit, got ", x.sizes(), " and ",
              weight_compute.sizes());
  TORCH_CHECK(x.scalar_type() == weight_compute.scalar_type() && at::isFloatingType(x.scalar_type()),
              "hrm::linear: x and weight_compute must have one floating-point dtype, got ", x.scalar_type(), " and ",
              weight_compute.scalar_type(), " (shapes ", x.sizes(), " and ", weight_compute.sizes(), ")");
  TORCH_CHECK(master.sizes() == weight_compute.sizes(), "hrm::linear: master has shape ", master.sizes(),
              ", weight_compute ", weight_compute.sizes());
  TORCH_CHECK(!bias || (bias->dim() == 1 && bias->size(0) == weight_compute.size(0)),
              "hrm::linear: bias must have shape (out) = [", weight_compute.size(0), "], got ",
              bias ? bias->sizes() : at::IntArrayRef{});
  // A buffer that rounds each sum is what this op exists to avoid.
  const at::ScalarType wide = accumulate_type(x);
  TORCH_CHECK(!grad_weight || (grad_weight->sizes() == master.sizes() && grad_weight->scalar_type() == wide),
              "hrm::linear: grad_weight must be ", wide, " of shape ", master.sizes(), ", got ",
              grad_weight->scalar_type(), " of ", grad_weight->sizes());
  TORCH_CHECK(!grad_bias || (bias && grad_bias->sizes() == bias->sizes() && grad_bias->scalar_type() == wide),
              "hrm::linear: grad_bias must be ", wide, " of the bias' shape, got ", grad_bias->scalar_type(), " of ",
              grad_bias->sizes());
}

void check_linear_accumulate(const at::Tensor& grad_weight, const at::Tensor& grad_y, const at::Tensor& x) {
  TORCH_CHECK(grad_weight.dim() == 2 && grad_y.dim() == 2 && x.dim() == 2 && grad_y.size(0) == x.size(0) &&
                  grad_weight.size(0) == grad_y.size(1) && grad_weight.size(1) == x.size(1),
              "hrm::linear_accumulate_: grad_weight (out, in), grad_y (N, out) and x (N, in) do not fit, got ",
              grad_weight.sizes(), ", ", grad_y.sizes(), " and ", x.sizes());
  TORCH_CHECK(grad_y.scalar_type() == x.scalar_type(), "hrm::linear_accumulate_: grad_y is ", grad_y.scalar_type(),
              ", x is ", x.scalar_type(), " (shapes ", grad_y.sizes(), " and ", x.sizes(), ")");
}

at::Tensor linear_forward(const at::Tensor& x, const at::Tensor& weight, const OptionalTensor& bias) {
  const OptionalTensor rounded = bias ? OptionalTensor(bias->to(x.scalar_type())) : OptionalTensor();
  if (x.is_cpu()) return cpu::linear_product(x, weight, rounded);
  if (bias || backend() == Backend::reference) return at::linear(x, weight, rounded);
  const at::Tensor y = at::empty(with_last_size(x, weight.size(0)), x.options());
  const at::Tensor rows = x.reshape({-1, weight.size(1)});
  linear_out(y.view({rows.size(0), weight.size(0)}), rows, weight);
  return y;
}

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight_compute, const at::Tensor& master,
                  const OptionalTensor& bias, const OptionalTensor& grad_weight, const OptionalTensor& grad_bias) {
  static const Op<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, const OptionalTensor&,
                             const OptionalTensor&, const OptionalTensor&)>
      op("hrm::linear");
  return op(x, weight_compute, master, bias, grad_weight, grad_bias);
}

void linear_out(const at::Tensor& y, const at::Tensor& x, const at::Tensor& weight) {
  TORCH_CHECK(y.dim() == 2 && x.dim() == 2 && weight.dim() == 2 && x.size(1) == weight.size(1) &&
                  y.size(0) == x.size(0) && y.size(1) == weight.size(0),
              "hrm::linear_out: y (N, out), x (N, in) and weight (out, in) do not fit, got ", y.sizes(), ", ",
              x.sizes(), " and ", weight.sizes());
  if (tuned_product(y, x, weight.t(), false)) return;
  at::Tensor out = y;
  at::mm_out(out, x, weight.t());
}

void check_linear_grad_x(const at::Tensor& grad_y, const at::Tensor& weight) {
  TORCH_CHECK(weight.dim() == 2 && grad_y.dim() >= 1 && grad_y.size(-1) == weight.size(0),
              "hrm::linear_grad_x: grad_y (..., out) and weight (out, in) do not fit, got ", grad_y.sizes(), " and ",
              weight.sizes());
  TORCH_CHECK(grad_y.scalar_type() == weight.scalar_type() && grad_y.device() == weight.device(),
              "hrm::linear_grad_x: grad_y is ", grad_y.scalar_type(), " on ", grad_y.device(), ", weight ",
              weight.scalar_type(), " on ", weight.device(), " (shapes ", grad_y.sizes(), " and ", weight.sizes(), ")");
}

void check_linear_grad_x_add(const at::Tensor& grad_x, const at::Tensor& grad_y, const at::Tensor& weight) {
  check_linear_grad_x(grad_y, weight);
  TORCH_CHECK(grad_x.is_contiguous() && grad_x.dim() >= 1 && grad_x.size(-1) == weight.size(1) &&
                  grad_x.numel() / std::max<int64_t>(weight.size(1), 1) ==
                      grad_y.numel() / std::max<int64_t>(weight.size(0), 1) &&
                  grad_x.scalar_type() == weight.scalar_type() && grad_x.device() == weight.device(),
              "hrm::linear_grad_x_add_: grad_x must be contiguous, ", weight.scalar_type(), " on ", weight.device(),
              " and have as many rows of ", weight.size(1), " as grad_y has rows, got ", grad_x.sizes(), ", ",
              grad_x.scalar_type(), " on ", grad_x.device(), " (grad_y ", grad_y.sizes(), ")");
}

at::Tensor linear_grad_x(const at::Tensor& grad_y, const at::Tensor& weight) {
  static const Op<at::Tensor(const at::Tensor&, const at::Tensor&)> op("hrm::linear_grad_x");
  return op(grad_y, weight);
}

void linear_grad_x_add_(const at::Tensor& grad_x, const at::Tensor& grad_y, const at::Tensor& weight) {
  static const Op<void(const at::Tensor&, const at::Tensor&, const at::Tensor&)> op("hrm::linear_grad_x_add_");
  op(grad_x, grad_y, weight);
}

at::Tensor stale_gradient_buffer(const at::Tensor& leaf) {
  if (!leaf.defined() || !leaf.requires_grad()) return {};
  at::Tensor& grad = leaf.mutable_grad();
  if (!grad.defined()) grad = at::zeros_like(leaf, leaf.options().requires_grad(false));
  return grad;
}

at::Tensor gradient_buffer(const at::Tensor& leaf) {
  const at::Tensor grad = stale_gradient_buffer(leaf);
  before_adding_(grad);
  return grad;
}

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight_compute, const at::Tensor& master,
                  const at::Tensor& bias) {
  if (!at::GradMode::is_enabled()) return linear(x, weight_compute, master, optional_tensor(bias), {}, {});
  return linear(x, weight_compute, master, optional_tensor(bias), optional_tensor(stale_gradient_buffer(master)),
                optional_tensor(gradient_buffer(bias)));
}

void linear_accumulate_(const at::Tensor& grad_weight, const at::Tensor& grad_y, const at::Tensor& x) {
  static const Op<void(const at::Tensor&, const at::Tensor&, const at::Tensor&)> op("hrm::linear_accumulate_");
  if (take_stale(grad_weight)) return linear_weight_gradient_(grad_weight, grad_y, x);
  op(grad_weight, grad_y, x);
}

void linear_weight_gradient_(const at::Tensor& grad_weight, const at::Tensor& grad_y, const at::Tensor& x) {
  check_linear_accumulate(grad_weight, grad_y, x);
  if (tuned_product(grad_weight, grad_y.t(), x, /*accumulates=*/false)) return;
  grad_weight.zero_();
  linear_accumulate_(grad_weight, grad_y, x);
}

namespace {

at::Tensor linear_cpu(const at::Tensor& x, const at::Tensor& weight_compute, const at::Tensor& master,
                      const OptionalTensor& bias, const OptionalTensor& grad_weight, const OptionalTensor& grad_bias) {
  check_linear(x, weight_compute, master, bias, grad_weight, grad_bias);
  return linear_forward(x, weight_compute, bias);
}

void linear_accumulate_cpu(const at::Tensor& grad_weight, const at::Tensor& grad_y, const at::Tensor& x) {
  check_linear_accumulate(grad_weight, grad_y, x);
  if (backend() == Backend::reference || x.scalar_type() != grad_weight.scalar_type()) {
    return reference::linear_accumulate_(grad_weight, grad_y, x);
  }
  const at::NoGradGuard no_grad;
  cpu::add_mm_(grad_weight, grad_y.t(), x);
}

// On every device.
at::Tensor linear_grad_x_any(const at::Tensor& grad_y, const at::Tensor& weight) {
  check_linear_grad_x(grad_y, weight);
  const at::Tensor rows = grad_y.reshape({-1, weight.size(0)});
  const std::vector<int64_t> sizes = with_last_size(grad_y, weight.size(1));
  if (grad_y.is_cpu()) return cpu::matrix_product(rows, weight).view(sizes);
  const at::Tensor grad_x = at::empty(sizes, grad_y.options());
  at::Tensor out = grad_x.view({rows.size(0), weight.size(1)});
  if (!tuned_product(out, rows, weight, false)) at::mm_out(out, rows, weight);
  return grad_x;
}

void linear_grad_x_add_any(const at::Tensor& grad_x, const at::Tensor& grad_y, const at::Tensor& weight) {
  check_linear_grad_x_add(grad_x, grad_y, weight);
  const at::NoGradGuard no_grad;
  const at::Tensor grad_rows = grad_y.reshape({-1, weight.size(0)}),
                   rows = grad_x.view({grad_rows.size(0), weight.size(1)});
  if (grad_y.is_cpu()) {
    rows.add_(cpu::matrix_product(grad_rows, weight));
  } else if (!low_rank_gemm(rows, grad_rows, weight) && !tuned_product(rows, grad_rows, weight, true)) {
    rows.addmm_(grad_rows, weight);
  }
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(hrm, m) {
  m.def(
      "linear(Tensor x, Tensor weight_compute, Tensor master, Tensor? bias, Tensor(a!)? grad_weight, "
      "Tensor(b!)? grad_bias) -> Tensor");
  m.def("linear_accumulate_(Tensor(a!) grad_weight, Tensor grad_y, Tensor x) -> ()");
  m.def("linear_grad_x(Tensor grad_y, Tensor weight) -> Tensor");
  m.def("linear_grad_x_add_(Tensor(a!) grad_x, Tensor grad_y, Tensor weight) -> ()");
}

TORCH_LIBRARY_IMPL(hrm, CPU, m) {
  m.impl("linear", &linear_cpu);
  m.impl("linear_accumulate_", &linear_accumulate_cpu);
  m.impl("linear_grad_x", &linear_grad_x_any);
  m.impl("linear_grad_x_add_", &linear_grad_x_add_any);
}

#if HRM_WITH_CUDA
TORCH_LIBRARY_IMPL(hrm, CUDA, m) {
  m.impl("linear_grad_x", &linear_grad_x_any);
  m.impl("linear_grad_x_add_", &linear_grad_x_add_any);
}
#endif

}  // namespace hrm::ops
