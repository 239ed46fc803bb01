#include "hrm/nn/feed_forward.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <iterator>
#include <optional>

#include "hrm/nn/across_linear.h"
#include "hrm/nn/fp8_block.h"
#include "hrm/nn/fp8_rows_block.h"
#include "hrm/nn/recompute.h"
#include "hrm/ops/linear.h"
#include "hrm/ops/linear_swiglu.h"
#include "hrm/ops/stale_gradient.h"
#include "hrm/ops/swiglu.h"

namespace hrm::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// down(silu(gate) * up) (+ residual) on rows, with the gate's part of both passes in GEMM epilogues. The masters are
// arguments so that the node exists whenever they are trained, even if x needs no gradient.
struct Swiglu : torch::autograd::Function<Swiglu> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& /*gate_up_master*/,
                            const at::Tensor& /*down_master*/, const std::optional<at::Tensor>& residual,
                            const Linear* gate_up_proj, const Linear* down_proj) {
    const auto [act, gate_up] = ops::linear_swiglu_forward(x, gate_up_proj->compute_weight());
    ctx->save_for_backward({x, gate_up, act, gate_up_proj->compute_weight(), down_proj->compute_weight()});
    ctx->saved_data["needs_x"] = x.requires_grad();
    ctx->saved_data["has_residual"] = residual.has_value();
    // The gradient buffers are not saved variables, because each use of a weight adds to them in place.
    ctx->saved_data["grad_gate_up"] = ops::stale_gradient_buffer(gate_up_proj->weight());
    ctx->saved_data["grad_down"] = ops::stale_gradient_buffer(down_proj->weight());
    if (residual && result_is_unread()) return at::empty_like(*residual);
    return residual ? down_proj->forward_add(act, *residual) : down_proj->forward(act);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    TORCH_CHECK(!at::GradMode::is_enabled(), "a SwiGLU layer has no second derivative");
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &gate_up = saved[1], &act = saved[2], &grad = grads[0];
    const auto accumulate = [&](const char* buffer, const at::Tensor& grad_y, const at::Tensor& input) {
      const at::Tensor grad_weight = ctx->saved_data[buffer].toTensor();
      if (grad_weight.defined()) ops::linear_accumulate_(grad_weight, grad_y, input);
    };
    const at::Tensor grad_gate_up = ops::linear_swiglu_backward(grad, saved[4], gate_up);
    accumulate("grad_down", grad, act);
    accumulate("grad_gate_up", grad_gate_up, x);
    variable_list out(6);
    if (ctx->saved_data["needs_x"].toBool()) out[0] = ops::linear_grad_x(grad_gate_up, saved[3]);
    if (ctx->saved_data["has_residual"].toBool()) out[3] = grad;
    return out;
  }
};

}  // namespace

at::Tensor FeedForward::forward_add(const at::Tensor& x, const at::Tensor& residual) {
  return residual + forward(x);
}

at::Tensor FeedForward::normed_add(const RmsNorm& norm, const at::Tensor& x) {
  const ops::NormedStream stream = norm.forward_stream(x);
  return forward_add(stream.y, stream.x);
}

StepRows FeedForward::step_add(const RmsNorm& norm, const StepRows& rows, const RmsNorm*) {
  return {forward_add(norm.forward(rows.x), rows.x)};
}

at::Tensor FeedForward::step_sums(const RmsNorm& norm, const StepRows& rows) {
  return forward(norm.forward(rows.x));
}

ops::Pieces FeedForward::forward_across(const TensorAcross& across, const at::Tensor& rows, int64_t tokens) {
  return across.leave(forward(across.enter(rows, tokens)));
}

GeluFeedForward::GeluFeedForward(int64_t width, int64_t inner, at::Device device) {
  up_ = register_module("up", std::make_shared<Linear>(width, inner, device));
  down_ = register_module("down", std::make_shared<Linear>(inner, width, device));
}

at::Tensor GeluFeedForward::forward(const at::Tensor& x) {
  return down_->forward(at::gelu(up_->forward(x)));
}

SwigluFeedForward::SwigluFeedForward(int64_t width, int64_t inner, at::Device device, WeightFormat format,
                                     const SwigluForm& form)
    : form_(form) {
  const auto linear = [&](const char* name, int64_t in, int64_t out) {
    return register_module(name, std::make_shared<Linear>(in, out, device, /*bias=*/false, format));
  };
  gate_up_proj_ = linear("gate_up_proj", width, 2 * inner);
  down_proj_ = linear("down_proj", inner, width);
  if (form.cut.whole()) return;
  const int64_t all = form.cut.parts * inner;
  gate_up_proj_->set_cut({.by = CutBy::gate_up, .cut = form.cut, .pieces = {all, all}});
  down_proj_->set_cut({.by = CutBy::columns, .cut = form.cut, .pieces = {all}});
}

bool SwigluFeedForward::needs_forward() const {
  return form_.gelu || gate_up_proj_->needs_forward() || down_proj_->needs_forward();
}

at::Tensor SwigluFeedForward::gated(const at::Tensor& gate_up) const {
  if (!form_.gelu) return ops::swiglu(gate_up);
  const std::vector<at::Tensor> halves = gate_up.chunk(2, -1);
  return at::gelu(halves[0], "tanh") * halves[1];
}

at::Tensor SwigluFeedForward::forward(const at::Tensor& x) {
  if (needs_forward()) return down_proj_->forward(gated(gate_up_proj_->forward(x)));
  if (!at::GradMode::is_enabled()) {
    return down_proj_->forward(ops::linear_swiglu(x, gate_up_proj_->compute_weight()));
  }
  return Swiglu::apply(x, gate_up_proj_->weight(), down_proj_->weight(), std::nullopt, gate_up_proj_.get(),
                       down_proj_.get());
}

at::Tensor SwigluFeedForward::forward_add(const at::Tensor& x, const at::Tensor& residual) {
  if (needs_forward()) return down_proj_->forward_add(gated(gate_up_proj_->forward(x)), residual);
  if (!at::GradMode::is_enabled()) {
    return down_proj_->forward_add(ops::linear_swiglu(x, gate_up_proj_->compute_weight()), residual);
  }
  return Swiglu::apply(x, gate_up_proj_->weight(), down_proj_->weight(), std::optional(residual), gate_up_proj_.get(),
                       down_proj_.get());
}

at::Tensor SwigluFeedForward::normed_add(const RmsNorm& norm, const at::Tensor& x) {
  if (!form_.gelu && gate_up_proj_->fp8_layer() != nullptr && down_proj_->fp8_layer() != nullptr) {
    return fp8_swiglu_add(x, norm, *gate_up_proj_, *down_proj_);
  }
  if (!form_.gelu && gate_up_proj_->takes_fp8_rows(x) && down_proj_->takes_fp8_rows(x)) {
    return rows_swiglu_add(x, norm, *gate_up_proj_, *down_proj_);
  }
  return FeedForward::normed_add(norm, x);
}

StepRows SwigluFeedForward::step_add(const RmsNorm& norm, const StepRows& rows, const RmsNorm* next) {
  const ops::PairedRows y = step_linear(*gate_up_proj_, norm, rows, /*gated=*/!form_.gelu);
  return step_product(*down_proj_, form_.gelu ? ops::PairedRows(gated(y.rows)) : y, rows.x, next);
}

at::Tensor SwigluFeedForward::step_sums(const RmsNorm& norm, const StepRows& rows) {
  const ops::PairedRows y = step_linear(*gate_up_proj_, norm, rows, /*gated=*/!form_.gelu);
  return step_sums_of(*down_proj_, form_.gelu ? ops::PairedRows(gated(y.rows)) : y);
}

ops::Pieces SwigluFeedForward::forward_across(const TensorAcross& across, const at::Tensor& rows, int64_t tokens) {
  if (!needs_forward()) return swiglu_across(across, rows, tokens, *gate_up_proj_, *down_proj_);
  return linear_leave(across, gated(enter_linear(across, rows, tokens, *gate_up_proj_)), *down_proj_);
}

std::vector<AdaptableLinear> SwigluFeedForward::adaptable_linears() {
  const int64_t inner = gate_up_proj_->weight().size(0) / 2;
  if (form_.joined) {
    return {{gate_up_proj_, {{"gate_up_proj", 2 * inner}}},
            {down_proj_, {{"down_proj", down_proj_->weight().size(0)}}}};
  }
  return {{gate_up_proj_, {{"gate_proj", inner}, {"up_proj", inner}}},
          {down_proj_, {{"down_proj", down_proj_->weight().size(0)}}}};
}

std::vector<AuxiliaryLoss> take_auxiliary_losses(const torch::nn::Module& module) {
  std::vector<AuxiliaryLoss> losses;
  for (const auto& child : module.modules(/*include_self=*/false)) {
    if (auto* part = dynamic_cast<HasAuxiliaryLosses*>(child.get())) {
      std::vector<AuxiliaryLoss> taken = part->take_auxiliary_losses();
      losses.insert(losses.end(), std::make_move_iterator(taken.begin()), std::make_move_iterator(taken.end()));
    }
  }
  return losses;
}

}  // namespace hrm::nn
