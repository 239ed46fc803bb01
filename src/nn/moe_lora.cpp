#include "nn/moe_lora.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>
#include <vector>

#include "hrm/nn/lora.h"
#include "hrm/ops/linear.h"
#include "hrm/ops/swiglu.h"
#include "ops/moe/moe_impl.h"

namespace hrm::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Letters as in hrm/ops/moe.h: E experts, R rows of picks. A layer has `parts` projections of N rows for each expert,
// e.g. gate and up; P of them, `wanted`, have an adapter of rank r.
struct Adapter {
  at::Tensor A, B;            // (E, P r, in), (E, P N, r), compute dtype; undefined without an adapter
  at::Tensor grad_A, grad_B;  // float32, alike; undefined where there is nothing to train
  std::vector<int64_t> wanted;
  double scale = 0;

  bool defined() const { return A.defined(); }
  int64_t rank() const { return B.size(2); }
  int64_t width() const { return B.size(1) / static_cast<int64_t>(wanted.size()); }  // N
  // Of projection i of the P.
  at::Tensor part_of(const at::Tensor& stacked, int64_t i) const {
    const int64_t parts = static_cast<int64_t>(wanted.size());
    return stacked.view({stacked.size(0), parts, -1, stacked.size(2)}).select(1, i);
  }
};

Adapter adapter_of(const Linear& linear, int64_t experts, int64_t parts) {
  const LoraAdapter* lora = linear.adapter();
  if (lora == nullptr) return {};
  Adapter out;
  out.scale = lora_scale(lora->shared()->options);
  const int64_t rows = linear.weight().size(0) / (experts * parts);
  for (const ops::LoraSlice& slice : lora->slices()) {
    if (slice.out >= rows * parts) break;  // of the second expert, which is like the first
    out.wanted.push_back(slice.out / rows);
  }
  const auto stacked = [&](const at::Tensor& weight) { return weight.detach().view({experts, -1, weight.size(1)}); };
  out.A = stacked(lora->A().compute_weight());
  out.B = stacked(lora->B().compute_weight());
  const auto gradient = [&](const at::Tensor& master) {
    const at::Tensor buffer = ops::gradient_buffer(master);
    return buffer.defined() ? stacked(buffer) : at::Tensor();
  };
  out.grad_A = gradient(lora->A().weight());
  out.grad_B = gradient(lora->B().weight());
  return out;
}

struct Tiles {
  at::Tensor experts, starts;

  at::Tensor product(const at::Tensor& rows, const at::Tensor& weight) const {
    return ops::moe_linear(rows, weight, experts, starts, /*transposed=*/false);
  }
  at::Tensor product_back(const at::Tensor& rows, const at::Tensor& weight) const {
    return ops::moe_linear(rows, weight, experts, starts, /*transposed=*/true);
  }
  void accumulate(const at::Tensor& grad, const at::Tensor& a, const at::Tensor& b) const {
    ops::moe_accumulate_(grad, a, b, experts, starts);
  }
};

// y (R, parts N) = rows W^T, plus the adapter's part; and u (R, P r) = scale * rows A^T.
std::pair<at::Tensor, at::Tensor> adapted(const at::Tensor& rows, const at::Tensor& weight, const Adapter& lora,
                                          const Tiles& tiles) {
  at::Tensor y = tiles.product(rows, weight), u;
  if (!lora.defined()) return {y, u};
  u = tiles.product(rows, lora.A).mul_(lora.scale);
  const int64_t r = lora.rank(), N = lora.width();
  for (size_t i = 0; i < lora.wanted.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    const at::Tensor added = tiles.product(u.narrow(1, at * r, r).contiguous(), lora.part_of(lora.B, at).contiguous());
    y.narrow(1, lora.wanted[i] * N, N).add_(added);
  }
  return {y, u};
}

// The gradient of the rows, (R, in), from that of y; those of A and B go to their buffers.
at::Tensor adapted_backward(const at::Tensor& grad_y, const at::Tensor& rows, const at::Tensor& u,
                            const at::Tensor& weight, const Adapter& lora, const Tiles& tiles, bool needs_rows) {
  at::Tensor grad_rows;
  if (needs_rows) grad_rows = tiles.product_back(grad_y, weight);
  if (!lora.defined()) return grad_rows;
  const int64_t r = lora.rank(), N = lora.width();
  std::vector<at::Tensor> grads_u;
  for (size_t i = 0; i < lora.wanted.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    const at::Tensor grad = grad_y.narrow(1, lora.wanted[i] * N, N).contiguous();
    grads_u.push_back(tiles.product_back(grad, lora.part_of(lora.B, at).contiguous()));
    if (!lora.grad_B.defined()) continue;
    const at::Tensor to = lora.part_of(lora.grad_B, at), of_u = u.narrow(1, at * r, r).contiguous();
    if (to.is_contiguous()) {
      tiles.accumulate(to, grad, of_u);
    } else {
      const at::Tensor sum = at::zeros(to.sizes(), to.options());
      tiles.accumulate(sum, grad, of_u);
      to.add_(sum);
    }
  }
  const at::Tensor grad_u = (grads_u.size() == 1 ? grads_u.front() : at::cat(grads_u, 1)).mul_(lora.scale);
  if (lora.grad_A.defined()) tiles.accumulate(lora.grad_A, grad_u.contiguous(), rows);
  if (needs_rows) grad_rows.add_(tiles.product_back(grad_u.contiguous(), lora.A));
  return grad_rows;
}

struct Passed {
  at::Tensor xp, pre, act, y, u_up, u_down;
};

Passed experts_forward(const at::Tensor& x, const ops::MoePlan& plan, const at::Tensor& up, const at::Tensor& down,
                       const Adapter& up_lora, const Adapter& down_lora) {
  const Tiles tiles{plan.tile_experts, plan.starts};
  Passed p;
  p.xp = ops::moe_gather(x, plan.picks, plan.starts, plan.rows.size(1));
  std::tie(p.pre, p.u_up) = adapted(p.xp, up, up_lora, tiles);
  p.act = ops::swiglu(p.pre);
  std::tie(p.y, p.u_down) = adapted(p.act, down, down_lora, tiles);
  return p;
}

// Keeps what is not a tensor of the graph: buffers, to which each use adds, and the layout.
struct AdapterHolder : torch::CustomClassHolder {
  AdapterHolder(Adapter up_adapter, Adapter down_adapter) : up(std::move(up_adapter)), down(std::move(down_adapter)) {}
  Adapter up, down;
};

// The masters are arguments so that the node exists whenever they are trained, even if x needs no gradient.
struct AdaptedExperts : torch::autograd::Function<AdaptedExperts> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weights,
                            const at::Tensor& /*master*/, const ops::MoePlan* plan, const at::Tensor& up,
                            const at::Tensor& down, const Adapter* up_lora, const Adapter* down_lora) {
    const Passed p = experts_forward(x, *plan, up, down, *up_lora, *down_lora);
    ctx->save_for_backward({p.xp, p.pre, p.act, p.y, p.u_up, p.u_down, weights, plan->rows, plan->picks,
                            plan->tile_experts, plan->starts, up, down});
    ctx->saved_data["adapters"] = c10::IValue::make_capsule(c10::make_intrusive<AdapterHolder>(*up_lora, *down_lora));
    ctx->saved_data["needs_x"] = x.requires_grad();
    return ops::moe_combine(p.y, plan->rows, weights);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    TORCH_CHECK(!at::GradMode::is_enabled(), "an adapter of experts has no second derivative");
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &xp = saved[0], &pre = saved[1], &act = saved[2], &y = saved[3], &weights = saved[6],
                     &rows = saved[7], &picks = saved[8], &up = saved[11], &down = saved[12];
    const Tiles tiles{saved[9], saved[10]};
    const auto capsule = ctx->saved_data["adapters"].toCapsule();
    const auto& adapters = static_cast<const AdapterHolder&>(*capsule);
    const auto [grad_y, grad_weights] =
        ops::moe_combine_backward(grads[0].contiguous(), y, picks, tiles.starts, weights);
    const at::Tensor grad_act = adapted_backward(grad_y, act, saved[5], down, adapters.down, tiles, true);
    const at::Tensor grad_pre = ops::swiglu_backward(grad_act, pre);
    const bool needs_x = ctx->saved_data["needs_x"].toBool();
    const at::Tensor grad_xp = adapted_backward(grad_pre, xp, saved[4], up, adapters.up, tiles, needs_x);
    variable_list out(8);
    if (needs_x) out[0] = ops::moe_combine(grad_xp, rows, {});
    out[1] = grad_weights;
    return out;
  }
};

}  // namespace

at::Tensor adapted_experts(const at::Tensor& x, const at::Tensor& weights, const ops::MoePlan& plan,
                           const Linear& gate_up, const Linear& down) {
  const int64_t experts = plan.counts.size(0);
  const Adapter up_lora = adapter_of(gate_up, experts, /*parts=*/2), down_lora = adapter_of(down, experts, 1);
  const auto matrices = [&](const Linear& linear) {
    const at::Tensor weight = linear.base_weight().detach();
    return weight.view({experts, -1, weight.size(1)});
  };
  const at::Tensor up_weight = matrices(gate_up), down_weight = matrices(down);
  if (!at::GradMode::is_enabled()) {
    return ops::moe_combine(experts_forward(x, plan, up_weight, down_weight, up_lora, down_lora).y, plan.rows, weights);
  }
  const Linear& adapted_one = up_lora.defined() ? gate_up : down;
  return AdaptedExperts::apply(x, weights, adapted_one.adapter()->A().weight(), &plan, up_weight, down_weight, &up_lora,
                               &down_lora);
}

}  // namespace hrm::nn
