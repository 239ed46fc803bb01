#include <ATen/ATen.h>
#include <torch/library.h>

namespace hrm::ops {
namespace {

bool recorded(const c10::IValue& value) {
  if (value.isTensor()) return value.toTensor().defined() && value.toTensor().requires_grad();
  if (!value.isTensorList()) return false;
  for (const at::Tensor& tensor : value.toTensorVector()) {
    if (tensor.requires_grad()) return true;
  }
  return false;
}

// Rounding to 8 bits has no derivative that is of use: asking for one is refused at once, not in the backward pass.
void without_derivative(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  if (at::GradMode::is_enabled()) {
    for (const c10::IValue& argument : torch::jit::last(*stack, op.schema().arguments().size())) {
      TORCH_CHECK(!recorded(argument), op.schema().name(),
                  " has no derivative: run it without gradient mode, or on tensors that require no gradient");
    }
  }
  at::AutoDispatchBelowADInplaceOrView below;
  op.callBoxed(stack);
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, Autograd, m) {
  for (const char* op : {"quantize_fp8", "quantize_fp8_", "add_fp8", "linear_fp8", "linear_swiglu_fp8",
                         "linear_rms_norm_fp8", "attention_fp8", "fp8_update_scales_"}) {
    m.impl(op, torch::CppFunction::makeFromBoxedFunction<&without_derivative>());
  }
}

}  // namespace hrm::ops
