// The readable version, and the oracle of the kernels.
#include <ATen/ATen.h>

#include "ops/contrastive/geometric_relax_impl.h"

namespace hrm::ops::reference {
namespace {

constexpr double kNoLogit = -1e30;

// The slots in the dtype of the state, and what is behind the filled ones set to zero: it may hold anything.
struct Slots {
  Slots(const GeometricSlots& slots, const at::Tensor& x) : keys(slots.keys), norms(slots.key_norms) {
    resilience = slots.resilience;
    values = slots.values.to(x.scalar_type());
    if (!slots.filled.defined()) return;
    empty = at::arange(keys.size(0), keys.options().dtype(at::kLong)).ge(slots.filled);
    for (at::Tensor* tensor : {&keys, &norms, &resilience, &values}) {
      *tensor = tensor->masked_fill(tensor->dim() == 2 ? empty.unsqueeze(1) : empty, 0);
    }
  }

  at::Tensor keys, norms, resilience, values;
  at::Tensor empty;  // (S) bool; undefined: none
};

// Costs and logits of all slots, (R, S).
struct Retrieval {
  Retrieval(const at::Tensor& x, const at::Tensor& o, const Slots& slots, const GeometricConstants& c) {
    const at::Tensor distance = (slots.norms + x.square().sum(-1, true) - 2 * x.matmul(slots.keys.t())).clamp_min(0);
    costs = (distance + c.cost_eps).sqrt();
    logits = c.retrieval_beta * (c.gamma * o.matmul(slots.values.t()) - slots.resilience * costs);
    if (slots.empty.defined()) logits = logits.masked_fill(slots.empty, kNoLogit);
  }

  // Without any slot all weights are zero.
  at::Tensor weights(const Slots& slots, const at::Tensor& log_sum) const {
    const at::Tensor w = (logits - log_sum.unsqueeze(1)).exp();
    return slots.empty.defined() ? w.masked_fill(slots.empty, 0) : w;
  }

  at::Tensor costs, logits;
};

at::Tensor one_step(const at::Tensor& state, at::Tensor& velocity, const at::Tensor& move, double momentum) {
  if (momentum == 0) return state + move;
  velocity = velocity.defined() ? momentum * velocity + move : move;
  return state + velocity;
}

at::Tensor largest(const at::Tensor& change) {
  return change.size(-1) == 0 ? change.sum(-1) : change.abs().amax(-1);
}

}  // namespace

GeometricState geometric_relax(const at::Tensor& drive, const at::Tensor& offset0, const at::Tensor& o0,
                               const GeometricSlots& all_slots, const at::Tensor& metric, const at::Tensor& rates,
                               const GeometricNudge& nudge, const GeometricHidden& hidden, int64_t steps,
                               const GeometricConstants& c, double momentum) {
  const Slots slots(all_slots, drive);
  const at::Tensor dt_x = rates.select(0, 0), dt_o = rates.select(0, 1), dt_h = rates.select(0, 3);
  at::Tensor forces, onehot;  // of the nudge: sign beta
  if (nudge.readout.defined()) {
    forces = (nudge.signs * rates.select(0, 2)).unsqueeze(1);
    onehot =
        at::zeros({drive.size(0), nudge.readout.size(0)}, drive.options()).scatter(1, nudge.targets.unsqueeze(1), 1);
  }
  at::Tensor offset = offset0, o = o0, h = hidden.state, v_offset, vo, vh;
  at::Tensor speed = at::zeros({drive.size(0)}, drive.options()), residual = speed;
  for (int64_t step = 0; step < steps; ++step) {
    const at::Tensor x = drive + offset;
    const Retrieval retrieval(x, o, slots, c);
    const at::Tensor w = retrieval.weights(slots, retrieval.logits.logsumexp(-1));
    const at::Tensor e = w * slots.resilience / retrieval.costs;
    const at::Tensor pull = (e.matmul(slots.keys) - e.sum(-1, true) * x).matmul(metric);
    const at::Tensor strain = h.defined() ? offset - h.matmul(hidden.up.t()) : offset;
    at::Tensor force = c.gamma * (w.matmul(slots.values) - o);
    if (forces.defined()) {
      const at::Tensor error = (o.matmul(nudge.readout.t()) + nudge.bias).softmax(-1) - onehot;
      force = force - forces * error.matmul(nudge.readout);
    }
    const at::Tensor next_offset = one_step(offset, v_offset, dt_x * (pull - c.kappa * strain), momentum);
    const at::Tensor next_o = one_step(o, vo, dt_o * force, momentum);
    residual = at::maximum(largest(next_offset - offset), largest(next_o - o)).detach();
    if (h.defined()) {
      const at::Tensor move = dt_h * (hidden.drive - h + c.kappa * strain.matmul(hidden.down.t()));
      const at::Tensor next_h = one_step(h, vh, move, momentum).clamp(0, 1);
      if (momentum != 0) vh = next_h - h;
      residual = at::maximum(residual, largest(next_h - h)).detach();
      h = next_h;
    }
    speed = speed + ((next_offset - offset).square().sum(-1) + c.cost_eps).sqrt().detach();
    offset = next_offset;
    o = next_o;
  }
  return {offset, o, h, Retrieval(drive + offset, o, slots, c).logits.logsumexp(-1), speed, residual};
}

ContrastiveStatistics contrastive_statistics(const at::Tensor& x, const at::Tensor& o, const at::Tensor& log_sum,
                                             const at::Tensor& scales, const GeometricSlots& all_slots,
                                             const GeometricConstants& c) {
  const Slots slots(all_slots, x);
  const Retrieval retrieval(x, o, slots, c);
  const at::Tensor w = retrieval.weights(slots, log_sum), e = w * slots.resilience / retrieval.costs;
  const at::Tensor scaled_w = w * scales.unsqueeze(1), scaled_e = e * scales.unsqueeze(1);
  return {scaled_w.t().matmul(o), scaled_e.sum(0), scaled_e.t().matmul(x), (scaled_w * retrieval.costs).sum(0),
          e.sum(1)};
}

}  // namespace hrm::ops::reference
