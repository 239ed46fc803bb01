#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <utility>

#include "hrm/ops/linear.h"
#include "ops/common/op.h"
#include "ops/moe/moe_impl.h"

namespace hrm::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Router : torch::autograd::Function<Router> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            const at::Tensor& master, const OptionalTensor& grad_weight) {
    at::AutoDispatchBelowADInplaceOrView below;
    ctx->save_for_backward({x, weight});
    ctx->saved_data["needs_x"] = x.requires_grad();
    if (master.requires_grad()) ctx->saved_data["grad_weight"] = *grad_weight;
    return moe_router(x, weight, master, grad_weight);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    TORCH_CHECK(!at::GradMode::is_enabled(), "hrm::moe_router has no second derivative");
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor grad = grads[0].to(saved[0].scalar_type());
    if (const auto entry = ctx->saved_data.find("grad_weight"); entry != ctx->saved_data.end()) {
      linear_accumulate_(entry->second.toTensor(), grad, saved[0]);
    }
    variable_list out(4);
    if (ctx->saved_data["needs_x"].toBool()) out[0] = linear_grad_x(grad, saved[1]);
    return out;
  }
};

at::Tensor moe_router_autograd(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& master,
                               const OptionalTensor& grad_weight) {
  if (at::GradMode::is_enabled() && (x.requires_grad() || master.requires_grad())) {
    TORCH_CHECK(!master.requires_grad() || grad_weight, "hrm::moe_router: master of shape ", master.sizes(),
                " requires a gradient, so grad_weight must be given");
    return Router::apply(x, weight, master, grad_weight);
  }
  at::AutoDispatchBelowADInplaceOrView below;
  return moe_router(x, weight, master, grad_weight);
}

struct Gate : torch::autograd::Function<Gate> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& logits, int64_t top_k, bool sigmoid,
                               bool normalize, const OptionalTensor& bias) {
    at::AutoDispatchBelowADInplaceOrView below;
    const auto [ids, weights, scores] = moe_gate_forward(logits, top_k, sigmoid, normalize, bias);
    ctx->save_for_backward({ids, scores});
    ctx->saved_data["sigmoid"] = sigmoid;
    ctx->saved_data["normalize"] = normalize;
    ctx->mark_non_differentiable({ids});
    ctx->set_materialize_grads(false);
    return {ids, weights, scores};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    TORCH_CHECK(!at::GradMode::is_enabled(), "hrm::moe_gate has no second derivative");
    const variable_list saved = ctx->get_saved_variables();
    variable_list out(5);
    if (grads[1].defined() || grads[2].defined()) {
      out[0] = moe_gate_backward(optional_tensor(grads[1]), optional_tensor(grads[2]), saved[0], saved[1],
                                 ctx->saved_data["sigmoid"].toBool(), ctx->saved_data["normalize"].toBool());
    }
    return out;
  }
};

GateResult moe_gate_autograd(const at::Tensor& logits, int64_t top_k, bool sigmoid, bool normalize,
                             const OptionalTensor& bias) {
  if (at::GradMode::is_enabled() && logits.requires_grad()) {
    const variable_list out = Gate::apply(logits, top_k, sigmoid, normalize, bias);
    return {out[0], out[1], out[2]};
  }
  at::AutoDispatchBelowADInplaceOrView below;
  return moe_gate_forward(logits, top_k, sigmoid, normalize, bias);
}

struct LoadLoss : torch::autograd::Function<LoadLoss> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& scores, const at::Tensor& kept,
                            const OptionalTensor& wanted, const at::Tensor& totals) {
    at::AutoDispatchBelowADInplaceOrView below;
    const auto [loss, slope] = moe_load_loss_forward_(scores, kept, wanted, totals);
    ctx->save_for_backward({slope});
    ctx->saved_data["tokens"] = scores.size(0);
    return loss;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    TORCH_CHECK(!at::GradMode::is_enabled(), "hrm::moe_load_loss_ has no second derivative");
    const at::Tensor of_token = grads[0] * ctx->get_saved_variables()[0];
    return {of_token.expand({ctx->saved_data["tokens"].toInt(), -1}), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

std::tuple<at::Tensor, at::Tensor> moe_load_loss_autograd(const at::Tensor& scores, const at::Tensor& kept,
                                                          const OptionalTensor& wanted, const at::Tensor& totals) {
  if (at::GradMode::is_enabled() && scores.requires_grad()) {
    return {LoadLoss::apply(scores, kept, wanted, totals), at::Tensor()};
  }
  at::AutoDispatchBelowADInplaceOrView below;
  return moe_load_loss_forward_(scores, kept, wanted, totals);
}

struct Jitter : torch::autograd::Function<Jitter> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& step, double amount,
                            int64_t seed) {
    at::AutoDispatchBelowADInplaceOrView below;
    ctx->save_for_backward({step});
    ctx->saved_data["amount"] = amount;
    ctx->saved_data["seed"] = seed;
    return moe_jitter(x, step, amount, seed);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    TORCH_CHECK(!at::GradMode::is_enabled(), "hrm::moe_jitter has no second derivative");
    return {moe_jitter(grads[0], ctx->get_saved_variables()[0], ctx->saved_data["amount"].toDouble(),
                       ctx->saved_data["seed"].toInt()),
            at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

at::Tensor moe_jitter_autograd(const at::Tensor& x, const at::Tensor& step, double amount, int64_t seed) {
  if (at::GradMode::is_enabled() && x.requires_grad()) return Jitter::apply(x, step, amount, seed);
  at::AutoDispatchBelowADInplaceOrView below;
  return moe_jitter(x, step, amount, seed);
}

struct Experts : torch::autograd::Function<Experts> {
  // The masters are arguments so that the node exists whenever they train.
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weights,
                            const at::Tensor& rows, const at::Tensor& picks, const at::Tensor& tile_experts,
                            const at::Tensor& starts, const at::Tensor& up, const at::Tensor& up_master,
                            const at::Tensor& down, const at::Tensor& down_master, const OptionalTensor& grad_up,
                            const OptionalTensor& grad_down, const OptionalTensor& stale, bool swiglu) {
    at::AutoDispatchBelowADInplaceOrView below;
    const at::Tensor xp = moe_gather(x, picks, starts, rows.size(1));
    const auto [act, kept] =
        swiglu ? moe_up_swiglu(xp, up, tile_experts, starts, /*keep=*/true) : moe_up(xp, up, tile_experts, starts);
    const at::Tensor y = moe_linear(act, down, tile_experts, starts, /*transposed=*/false);
    ctx->save_for_backward({xp, kept, act, y, weights, rows, picks, tile_experts, starts, up, down});
    // As in ops::linear: buffers are no saved variables.
    if (up_master.requires_grad()) ctx->saved_data["grad_up"] = *grad_up;
    if (down_master.requires_grad()) ctx->saved_data["grad_down"] = *grad_down;
    if (stale) ctx->saved_data["stale"] = *stale;
    ctx->saved_data["swiglu"] = swiglu;
    ctx->saved_data["needs_x"] = x.requires_grad();
    return moe_combine(y, rows, weights);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    TORCH_CHECK(!at::GradMode::is_enabled(), "hrm::moe_experts has no second derivative");
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &xp = saved[0], &kept = saved[1], &act = saved[2], &y = saved[3], &weights = saved[4],
                     &rows = saved[5], &picks = saved[6], &tile_experts = saved[7], &starts = saved[8], &up = saved[9],
                     &down = saved[10];
    const auto find = [&](const char* name) {
      const auto entry = ctx->saved_data.find(name);
      return entry == ctx->saved_data.end() ? at::Tensor() : entry->second.toTensor();
    };
    // Read on the host, so that a captured step keeps for each use whether it comes first.
    const auto is_stale = [stale = find("stale")](int which) {
      return stale.defined() && std::exchange(stale.mutable_data_ptr<bool>()[which], false);
    };
    const auto [grad_y, grad_weights] = moe_combine_backward(grads[0].contiguous(), y, picks, starts, weights);
    if (const at::Tensor grad_down = find("grad_down"); grad_down.defined()) {
      moe_accumulate_(grad_down, grad_y, act, tile_experts, starts, is_stale(1));
    }
    const at::Tensor grad_pre = ctx->saved_data["swiglu"].toBool()
                                    ? moe_up_swiglu_backward(grad_y, down, kept, tile_experts, starts)
                                    : moe_up_backward(grad_y, down, kept, tile_experts, starts);
    if (const at::Tensor grad_up = find("grad_up"); grad_up.defined()) {
      moe_accumulate_(grad_up, grad_pre, xp, tile_experts, starts, is_stale(0));
    }
    variable_list out(14);
    if (ctx->saved_data["needs_x"].toBool()) {
      const at::Tensor grad_xp = moe_linear(grad_pre, up, tile_experts, starts, /*transposed=*/true);
      out[0] = moe_combine(grad_xp, rows, {});
    }
    out[1] = grad_weights;
    return out;
  }
};

at::Tensor moe_experts_autograd(const at::Tensor& x, const at::Tensor& weights, const at::Tensor& rows,
                                const at::Tensor& picks, const at::Tensor& tile_experts, const at::Tensor& starts,
                                const at::Tensor& up, const at::Tensor& up_master, const at::Tensor& down,
                                const at::Tensor& down_master, const OptionalTensor& grad_up,
                                const OptionalTensor& grad_down, const OptionalTensor& stale, bool swiglu) {
  const bool trains = up_master.requires_grad() || down_master.requires_grad();
  if (at::GradMode::is_enabled() && (x.requires_grad() || weights.requires_grad() || trains)) {
    TORCH_CHECK((!up_master.requires_grad() || grad_up) && (!down_master.requires_grad() || grad_down),
                "hrm::moe_experts: experts of shapes ", up_master.sizes(), " and ", down_master.sizes(),
                " require gradients, so grad_up and grad_down must be given");
    TORCH_CHECK((!up.requires_grad() || up.is_same(up_master)) && (!down.requires_grad() || down.is_same(down_master)),
                "hrm::moe_experts: the compute copies of shapes ", up.sizes(), " and ", down.sizes(),
                " must not require gradients; the masters do");
    return Experts::apply(x, weights, rows, picks, tile_experts, starts, up, up_master, down, down_master, grad_up,
                          grad_down, stale, swiglu);
  }
  at::AutoDispatchBelowADInplaceOrView below;
  static const Op<decltype(moe_experts_autograd)> op("hrm::moe_experts");
  return op(x, weights, rows, picks, tile_experts, starts, up, up_master, down, down_master, grad_up, grad_down, stale,
            swiglu);
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, Autograd, m) {
  m.impl("moe_router", &moe_router_autograd);
  m.impl("moe_gate", &moe_gate_autograd);
  m.impl("moe_experts", &moe_experts_autograd);
  m.impl("moe_jitter", &moe_jitter_autograd);
  m.impl("moe_load_loss_", &moe_load_loss_autograd);
  for (const char* op : {"moe_gate_backward", "moe_plan", "moe_gather", "moe_up", "moe_up_backward", "moe_up_swiglu",
                         "moe_up_swiglu_backward", "moe_linear", "moe_linear_portable", "moe_accumulate_",
                         "moe_accumulate_portable_", "moe_combine", "moe_combine_backward", "moe_loads_"}) {
    m.impl(op, torch::autograd::autogradNotImplementedFallback());
  }
}

}  // namespace hrm::ops
