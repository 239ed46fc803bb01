#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

namespace hrm::ops {

// What is quantised does not train.
TORCH_LIBRARY_IMPL(hrm, Autograd, m) {
  m.impl("nf4_quantize", torch::autograd::autogradNotImplementedFallback());
  m.impl("nf4_dequantize_", torch::autograd::autogradNotImplementedFallback());
  m.impl("linear_nf4", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace hrm::ops
