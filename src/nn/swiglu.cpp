#include "hrm/nn/swiglu.h"

#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <numbers>

#include "hrm/base/philox.h"
#include "hrm/ops/conv_swiglu.h"

namespace hrm::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct SiluGate : torch::autograd::Function<SiluGate> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& gate_up) {
    ctx->save_for_backward({gate_up});
    const int64_t width = gate_up.size(-1) / 2;
    return at::silu(gate_up.narrow(-1, 0, width)).mul_(gate_up.narrow(-1, width, width));
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const at::Tensor gate_up = ctx->get_saved_variables()[0];
    const at::Tensor& grad = grads[0];
    const int64_t width = gate_up.size(-1) / 2;
    const at::Tensor gate = gate_up.narrow(-1, 0, width), up = gate_up.narrow(-1, width, width);
    const at::Tensor out = at::empty_like(gate_up, at::MemoryFormat::Contiguous);
    at::Tensor grad_gate = out.narrow(-1, 0, width), grad_up = out.narrow(-1, width, width);
    at::mul_out(grad_up, at::silu(gate), grad);
    at::silu_backward_out(grad_gate, at::mul(grad, up), gate);
    return {out};
  }
};

}  // namespace

int64_t swiglu_width(int64_t width, double expansion) {
  const auto wanted = static_cast<int64_t>(std::nearbyint(expansion * static_cast<double>(width) * 2 / 3));
  return (wanted + 255) / 256 * 256;
}

at::Tensor silu_gate(const at::Tensor& gate_up) {
  return SiluGate::apply(gate_up);
}

DepthwiseConv::DepthwiseConv(int64_t channels, at::Device device)
    : weight_(register_parameter("weight", at::empty({channels, 1, 2}, at::device(device)))),
      bias_(register_parameter("bias", at::empty({channels}, at::device(device)))) {}

void DepthwiseConv::init_own(uint64_t seed, const std::string& name) {
  const auto draw = [&](at::Tensor parameter, const std::string& full_name) {
    CounterRng draws(seed, Stream::init, hash_name(full_name));
    const at::Tensor values = at::empty(parameter.sizes(), at::kFloat);
    auto* value = values.mutable_data_ptr<float>();
    for (int64_t i = 0; i < values.numel(); ++i) value[i] = (2 * draws.uniform() - 1) / std::numbers::sqrt2_v<float>;
    parameter.copy_(values);
  };
  draw(weight_, name + ".weight");
  draw(bias_, name + ".bias");
}

SwiGLU::SwiGLU(int64_t width, double expansion, at::Device device, bool convolution) {
  const int64_t inner = swiglu_width(width, expansion);
  gate_up_proj_ = register_module("gate_up_proj", std::make_shared<Linear>(width, 2 * inner, device));
  if (convolution) dwconv_ = register_module("dwconv", std::make_shared<DepthwiseConv>(inner, device));
  down_proj_ = register_module("down_proj", std::make_shared<Linear>(inner, width, device));
}

at::Tensor SwiGLU::forward(const at::Tensor& x) const {
  const at::Tensor gate_up = gate_up_proj_->forward(x);
  if (!dwconv_) return down_proj_->forward(silu_gate(gate_up));
  return down_proj_->forward(ops::conv_swiglu(gate_up, dwconv_->taps(), dwconv_->bias()));
}

}  // namespace hrm::nn
