#include "hrm/ops/swiglu.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include "hrm/ops/backend.h"
#include "ops/common/op.h"
#include "ops/linear/swiglu_impl.h"

namespace hrm::ops {

std::vector<int64_t> swiglu_sizes(const at::Tensor& gate_up) {
  std::vector<int64_t> sizes = gate_up.sizes().vec();
  sizes.back() /= 2;
  return sizes;
}

void check_swiglu(const at::Tensor& gate_up) {
  TORCH_CHECK(gate_up.dim() >= 1 && gate_up.size(-1) % 2 == 0,
              "hrm::swiglu: gate_up must have the shape (..., 2F), got ", gate_up.sizes());
  TORCH_CHECK(at::isFloatingType(gate_up.scalar_type()), "hrm::swiglu: gate_up must have a floating-point dtype, got ",
              gate_up.scalar_type(), " (shape ", gate_up.sizes(), ")");
}

void check_swiglu_backward(const at::Tensor& grad_act, const at::Tensor& gate_up) {
  check_swiglu(gate_up);
  TORCH_CHECK(grad_act.sizes() == at::IntArrayRef(swiglu_sizes(gate_up)),
              "hrm::swiglu_backward: grad_act must have the shape (..., F) where gate_up has (..., 2F), got ",
              grad_act.sizes(), " and ", gate_up.sizes());
  TORCH_CHECK(grad_act.scalar_type() == gate_up.scalar_type() && grad_act.device() == gate_up.device(),
              "hrm::swiglu_backward: grad_act is ", grad_act.scalar_type(), " on ", grad_act.device(), ", gate_up is ",
              gate_up.scalar_type(), " on ", gate_up.device(), " (shape ", gate_up.sizes(), ")");
}

at::Tensor swiglu(const at::Tensor& gate_up) {
  static const Op<at::Tensor(const at::Tensor&)> op("hrm::swiglu");
  return op(gate_up);
}

at::Tensor swiglu_backward(const at::Tensor& grad_act, const at::Tensor& gate_up) {
  static const Op<at::Tensor(const at::Tensor&, const at::Tensor&)> op("hrm::swiglu_backward");
  return op(grad_act, gate_up);
}

namespace {

bool cpu_loops_fit(const at::Tensor& gate_up) {
  return backend() == Backend::fused && gate_up.scalar_type() == at::kFloat;
}

at::Tensor swiglu_cpu(const at::Tensor& gate_up) {
  check_swiglu(gate_up);
  return cpu_loops_fit(gate_up) ? cpu::swiglu(gate_up) : reference::swiglu(gate_up);
}

at::Tensor swiglu_backward_cpu(const at::Tensor& grad_act, const at::Tensor& gate_up) {
  check_swiglu_backward(grad_act, gate_up);
  return cpu_loops_fit(gate_up) ? cpu::swiglu_backward(grad_act, gate_up)
                                : reference::swiglu_backward(grad_act, gate_up);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(hrm, m) {
  m.def("swiglu(Tensor gate_up) -> Tensor");
  m.def("swiglu_backward(Tensor grad_act, Tensor gate_up) -> Tensor");
}

TORCH_LIBRARY_IMPL(hrm, CPU, m) {
  m.impl("swiglu", &swiglu_cpu);
  m.impl("swiglu_backward", &swiglu_backward_cpu);
}

}  // namespace hrm::ops
