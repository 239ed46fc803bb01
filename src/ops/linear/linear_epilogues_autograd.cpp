// Parts of a hand-written backward pass: differentiating through them is an error, not a silently missing term.
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

TORCH_LIBRARY_IMPL(hrm, Autograd, m) {
  m.impl("linear_swiglu", torch::autograd::autogradNotImplementedFallback());
  m.impl("linear_swiglu_forward", torch::autograd::autogradNotImplementedFallback());
  m.impl("linear_swiglu_backward", torch::autograd::autogradNotImplementedFallback());
  m.impl("linear_rms_norm", torch::autograd::autogradNotImplementedFallback());
  m.impl("linear_rms_norm_add", torch::autograd::autogradNotImplementedFallback());
  m.impl("linear_rms_norm_forward", torch::autograd::autogradNotImplementedFallback());
}
