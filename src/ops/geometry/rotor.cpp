#include "ops/geometry/rotor_impl.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "ops/common/op.h"

namespace hrm::ops {

void check_rotor_matrix(const at::Tensor& theta, int64_t n) {
  TORCH_CHECK(theta.dim() == 1 && (theta.scalar_type() == at::kFloat || theta.scalar_type() == at::kDouble),
              "hrm::rotor_matrix: theta must be (k) of dtype float32 or float64, got ", theta.sizes(), " ",
              theta.scalar_type());
  TORCH_CHECK(n >= 1 && (n >= 2 || theta.numel() == 0), "hrm::rotor_matrix: theta ", theta.sizes(),
              " needs a plane, but n is ", n);
}

void check_rotor_angle_gradient(const at::Tensor& theta, const at::Tensor& outer) {
  TORCH_CHECK(theta.dim() == 1 && (theta.scalar_type() == at::kFloat || theta.scalar_type() == at::kDouble),
              "hrm::rotor_angle_gradient: theta must be (k) of dtype float32 or float64, got ", theta.sizes(), " ",
              theta.scalar_type());
  TORCH_CHECK(outer.dim() == 2 && outer.size(0) == outer.size(1) && outer.size(0) >= 1 &&
                  outer.scalar_type() == theta.scalar_type() && outer.device() == theta.device(),
              "hrm::rotor_angle_gradient: outer must be (n, n) with dtype and device of theta, got ", outer.sizes(),
              " ", outer.scalar_type(), " on ", outer.device(), " for ", theta.scalar_type(), " on ", theta.device());
  TORCH_CHECK(outer.size(0) >= 2 || theta.numel() == 0, "hrm::rotor_angle_gradient: theta ", theta.sizes(),
              " needs a plane, but outer is ", outer.sizes());
}

at::Tensor rotor_matrix(const at::Tensor& theta, int64_t n) {
  static const Op<at::Tensor(const at::Tensor&, int64_t)> op("hrm::rotor_matrix");
  return op(theta, n);
}

at::Tensor rotor_angle_gradient(const at::Tensor& theta, const at::Tensor& outer) {
  static const Op<at::Tensor(const at::Tensor&, const at::Tensor&)> op("hrm::rotor_angle_gradient");
  return op(theta, outer);
}

namespace {

at::Tensor rotor_matrix_cpu(const at::Tensor& theta, int64_t n) {
  check_rotor_matrix(theta, n);
  return reference::rotor_matrix(theta, n);
}

at::Tensor rotor_angle_gradient_cpu(const at::Tensor& theta, const at::Tensor& outer) {
  check_rotor_angle_gradient(theta, outer);
  return reference::rotor_angle_gradient(theta, outer);
}

struct RotorMatrix : torch::autograd::Function<RotorMatrix> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& theta, int64_t n) {
    at::AutoDispatchBelowADInplaceOrView below;
    const at::Tensor q = rotor_matrix(theta, n);
    ctx->save_for_backward({theta, q});
    return q;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    const torch::autograd::variable_list saved = ctx->get_saved_variables();
    return {rotor_angle_gradient(saved[0], grads[0].matmul(saved[1].t())), at::Tensor()};
  }
};

at::Tensor rotor_matrix_autograd(const at::Tensor& theta, int64_t n) {
  if (at::GradMode::is_enabled() && theta.requires_grad()) return RotorMatrix::apply(theta, n);
  at::AutoDispatchBelowADInplaceOrView below;
  return rotor_matrix(theta, n);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(hrm, m) {
  m.def("rotor_matrix(Tensor theta, int n) -> Tensor");
  m.def("rotor_angle_gradient(Tensor theta, Tensor outer) -> Tensor");
}

TORCH_LIBRARY_IMPL(hrm, CPU, m) {
  m.impl("rotor_matrix", &rotor_matrix_cpu);
  m.impl("rotor_angle_gradient", &rotor_angle_gradient_cpu);
}

TORCH_LIBRARY_IMPL(hrm, Autograd, m) {
  m.impl("rotor_matrix", &rotor_matrix_autograd);
  m.impl("rotor_angle_gradient", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace hrm::ops
