#include "hrm/ops/linear_add.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "hrm/build_config.h"
#include "hrm/ops/backend.h"
#include "hrm/ops/linear.h"
#include "hrm/ops/stale_gradient.h"
#include "ops/common/op.h"
#include "ops/common/optional_tensor.h"
#include "ops/linear/linear_impl.h"

#if HRM_WITH_CUDA
#include "ops/linear/cuda/blaslt.h"
#include "ops/linear/cuda/skinny_gemm_product.h"
#endif

namespace hrm::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

void check_linear_add(const at::Tensor& x, const at::Tensor& weight_compute, const at::Tensor& master,
                      const at::Tensor& residual, const OptionalTensor& grad_weight) {
  check_linear(x, weight_compute, master, {}, grad_weight, {});
  TORCH_CHECK(residual.dim() == x.dim() && residual.size(-1) == weight_compute.size(0) &&
                  residual.sizes().slice(0, x.dim() - 1) == x.sizes().slice(0, x.dim() - 1),
              "hrm::linear_add: residual must be (..., out) where x is (..., in) and weight (out, in), got ",
              residual.sizes(), ", ", x.sizes(), " and ", weight_compute.sizes());
  TORCH_CHECK(residual.scalar_type() == x.scalar_type() && residual.device() == x.device(),
              "hrm::linear_add: residual is ", residual.scalar_type(), " on ", residual.device(), ", x ",
              x.scalar_type(), " on ", x.device(), " (shapes ", residual.sizes(), " and ", x.sizes(), ")");
}

at::Tensor call(const at::Tensor& x, const at::Tensor& weight_compute, const at::Tensor& master,
                const at::Tensor& residual, const OptionalTensor& grad_weight) {
  static const Op<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                             const OptionalTensor&)>
      op("hrm::linear_add");
  return op(x, weight_compute, master, residual, grad_weight);
}

at::Tensor linear_add_cpu(const at::Tensor& x, const at::Tensor& weight_compute, const at::Tensor& master,
                          const at::Tensor& residual, const OptionalTensor& grad_weight) {
  check_linear_add(x, weight_compute, master, residual, grad_weight);
  return linear_forward(x, weight_compute, {}) + residual;
}

#if HRM_WITH_CUDA
at::Tensor linear_add_cuda(const at::Tensor& x, const at::Tensor& weight_compute, const at::Tensor& master,
                           const at::Tensor& residual, const OptionalTensor& grad_weight) {
  check_linear_add(x, weight_compute, master, residual, grad_weight);
  if (backend() == Backend::reference) return at::linear(x, weight_compute) + residual;
  if (at::Tensor few = cuda::skinny_gemm(x, weight_compute, {.residual = residual}); few.defined()) return few;
  at::Tensor y = at::empty(residual.sizes(), x.options());
  const at::Tensor rows = x.reshape({-1, x.size(-1)}), added = residual.reshape({-1, residual.size(-1)});
  at::Tensor out = y.view(added.sizes());
  const at::Tensor sum = added.is_contiguous() ? added : added.contiguous();
  if (!cuda::tuned_gemm(out, rows, weight_compute.t(), /*accumulates=*/true, sum)) {
    at::addmm_out(out, sum, rows, weight_compute.t());
  }
  return y;
}
#endif

// master is an argument so that the node exists whenever it trains, also where x and residual need no gradient.
struct LinearAdd : torch::autograd::Function<LinearAdd> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight_compute,
                            const at::Tensor& master, const at::Tensor& residual, const OptionalTensor& grad_weight) {
    at::AutoDispatchBelowADInplaceOrView below;
    const bool needs_weight = master.requires_grad();
    ctx->saved_data["needs_x"] = x.requires_grad();
    ctx->save_for_backward({needs_weight ? x : at::Tensor(), weight_compute});
    // No saved variable: each use of the weight adds to it, which is not a change behind the graph's back.
    ctx->saved_data["grad_weight"] = needs_weight ? *grad_weight : at::Tensor();
    return call(x, weight_compute, master, residual, grad_weight);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const at::Tensor& grad_y = grads[0];
    TORCH_CHECK(!at::GradMode::is_enabled(), "hrm::linear_add has no second derivative (grad_y ", grad_y.sizes(), ")");
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor& weight = saved[1];
    if (const at::Tensor grad_weight = ctx->saved_data["grad_weight"].toTensor(); grad_weight.defined()) {
      linear_accumulate_(grad_weight, grad_y.reshape({-1, weight.size(0)}), saved[0].reshape({-1, weight.size(1)}));
    }
    variable_list out(5);
    if (ctx->saved_data["needs_x"].toBool()) out[0] = linear_grad_x(grad_y, weight);
    out[3] = grad_y;
    return out;
  }
};

at::Tensor linear_add_autograd(const at::Tensor& x, const at::Tensor& weight_compute, const at::Tensor& master,
                               const at::Tensor& residual, const OptionalTensor& grad_weight) {
  if (at::GradMode::is_enabled() && (x.requires_grad() || master.requires_grad() || residual.requires_grad())) {
    TORCH_CHECK(!master.requires_grad() || grad_weight, "hrm::linear_add: master of shape ", master.sizes(),
                " requires a gradient, so grad_weight must be given");
    TORCH_CHECK(!weight_compute.requires_grad() || weight_compute.is_same(master),
                "hrm::linear_add: weight_compute of shape ", weight_compute.sizes(),
                " must not require a gradient; the master does");
    return LinearAdd::apply(x, weight_compute, master, residual, grad_weight);
  }
  at::AutoDispatchBelowADInplaceOrView below;
  return call(x, weight_compute, master, residual, grad_weight);
}

}  // namespace

at::Tensor linear_add(const at::Tensor& x, const at::Tensor& weight_compute, const at::Tensor& master,
                      const at::Tensor& residual) {
  const at::Tensor buffer = at::GradMode::is_enabled() ? stale_gradient_buffer(master) : at::Tensor();
  return call(x, weight_compute, master, residual, optional_tensor(buffer));
}

TORCH_LIBRARY_FRAGMENT(hrm, m) {
  m.def(
      "linear_add(Tensor x, Tensor weight_compute, Tensor master, Tensor residual, Tensor(a!)? grad_weight) -> "
      "Tensor");
}

TORCH_LIBRARY_IMPL(hrm, CPU, m) {
  m.impl("linear_add", &linear_add_cpu);
}

#if HRM_WITH_CUDA
TORCH_LIBRARY_IMPL(hrm, CUDA, m) {
  m.impl("linear_add", &linear_add_cuda);
}
#endif

TORCH_LIBRARY_IMPL(hrm, Autograd, m) {
  m.impl("linear_add", &linear_add_autograd);
}

}  // namespace hrm::ops
