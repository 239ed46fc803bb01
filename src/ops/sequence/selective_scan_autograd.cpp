#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "hrm/ops/selective_scan.h"
#include "ops/common/optional_tensor.h"

namespace hrm::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
struct SsdScan : torch::autograd::Function<SsdScan> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& dt, const at::Tensor& A,
                               const at::Tensor& B, const at::Tensor& C, const at::Tensor& D, int64_t chunk,
                               const OptionalTensor& initial_state) {
    at::AutoDispatchBelowADInplaceOrView below;
    ctx->set_materialize_grads(false);
    ctx->save_for_backward({x, dt, A, B, C, D, initial_state.value_or(at::Tensor())});
    ctx->saved_data["chunk"] = chunk;
    const auto [y, final_state] = ssd_scan(x, dt, A, B, C, D, chunk, initial_state);
    return {y, final_state};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list in = ctx->get_saved_variables();
    // Either output may be the only one that a loss reads.
    const at::Tensor grad_y = grads[0].defined() ? grads[0] : at::zeros_like(in[0]);
    const auto [x, dt, A, B, C, D, state] =
        ssd_scan_backward(grad_y, optional_tensor(grads[1]), in[0], in[1], in[2], in[3], in[4], in[5],
                          ctx->saved_data["chunk"].toInt(), optional_tensor(in[6]));
    return {x, dt, A, B, C, D, at::Tensor(), in[6].defined() ? state : at::Tensor()};
  }
};

std::tuple<at::Tensor, at::Tensor> ssd_scan_autograd(const at::Tensor& x, const at::Tensor& dt, const at::Tensor& A,
                                                     const at::Tensor& B, const at::Tensor& C, const at::Tensor& D,
                                                     int64_t chunk, const OptionalTensor& initial_state) {
  bool recorded = initial_state && initial_state->requires_grad();
  for (const at::Tensor* t : {&x, &dt, &A, &B, &C, &D}) recorded = recorded || t->requires_grad();
  if (at::GradMode::is_enabled() && recorded) {
    const variable_list out = SsdScan::apply(x, dt, A, B, C, D, chunk, initial_state);
    return {out[0], out[1]};
  }
  at::AutoDispatchBelowADInplaceOrView below;
  return ssd_scan(x, dt, A, B, C, D, chunk, initial_state);
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, Autograd, m) {
  m.impl("ssd_scan", &ssd_scan_autograd);
  m.impl("ssd_scan_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace hrm::ops
