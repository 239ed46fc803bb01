// The readable version, the CPU implementation, and the oracle of the CUDA kernel.
#include <ATen/ATen.h>

#include "ops/linear/swiglu_impl.h"

namespace hrm::ops::reference {

at::Tensor swiglu(const at::Tensor& gate_up) {
  const int64_t width = gate_up.size(-1) / 2;
  return at::silu(gate_up.narrow(-1, 0, width)).mul_(gate_up.narrow(-1, width, width)).contiguous();
}

at::Tensor swiglu_backward(const at::Tensor& grad_act, const at::Tensor& gate_up) {
  const int64_t width = gate_up.size(-1) / 2;
  const at::Tensor gate = gate_up.narrow(-1, 0, width), up = gate_up.narrow(-1, width, width);
  at::Tensor grad = at::empty(gate_up.sizes(), gate_up.options());
  at::Tensor grad_gate = grad.narrow(-1, 0, width), grad_up = grad.narrow(-1, width, width);
  at::mul_out(grad_up, at::silu(gate), grad_act);
  at::silu_backward_out(grad_gate, at::mul(grad_act, up), gate);
  return grad;
}

}  // namespace hrm::ops::reference
