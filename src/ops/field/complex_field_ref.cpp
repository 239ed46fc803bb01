// The readable version, and the oracle of the kernels.
#include <ATen/ATen.h>

#include "ops/field/complex_field_impl.h"

namespace hrm::ops {

at::Tensor complex_field_laplacian(const at::Tensor& field, bool periodic) {
  at::Tensor sum = field * -4;
  for (const int64_t axis : {0, 1}) {
    const int64_t last = field.size(axis) - 1;
    sum.narrow(axis, 0, last).add_(field.narrow(axis, 1, last));
    sum.narrow(axis, 1, last).add_(field.narrow(axis, 0, last));
    if (!periodic) continue;
    sum.narrow(axis, last, 1).add_(field.narrow(axis, 0, 1));
    sum.narrow(axis, 0, 1).add_(field.narrow(axis, last, 1));
  }
  return sum;
}

}  // namespace hrm::ops

namespace hrm::ops::reference {
namespace {

// |d|^2 of each complex value, with a last axis of 1.
at::Tensor squared(const at::Tensor& d) {
  return d.square().sum(-1, /*keepdim=*/true);
}

at::Tensor force(const at::Tensor& field, const at::Tensor& equilibrium, const OptionalTensor& nudge,
                 const FieldVerlet& s) {
  at::Tensor sum = complex_field_laplacian(field, s.periodic) * (s.hbar * s.hbar / (2 * s.mass));
  if (s.potential != FieldPotential::zero) {
    at::Tensor d = field - equilibrium;
    if (s.potential == FieldPotential::gaussian_well) d *= at::exp(squared(d) * -0.5);
    sum -= d * s.stiffness;
  }
  if (nudge) sum += *nudge;
  return sum;
}

// A skip leaves what is there.
void store(const at::Tensor& to, const at::Tensor& value, const OptionalTensor& skip) {
  to.copy_(skip ? at::where(skip->ne(0), to, value) : value);
}

// (1 - w) of the history's length, 0-dim float64.
at::Tensor memory_factor(const at::Tensor& length, double gain) {
  return 1 - at::clamp(at::log1p(length.to(at::kDouble)) * gain, 0, 1);
}

// Lambda: towards the normalised belief of the previous collapse.
at::Tensor collapse(const at::Tensor& previous, const at::Tensor& evidence, const FieldDissipative& s) {
  const at::Tensor weight = at::exp(squared(previous - evidence) / -s.evidence_width);
  const at::Tensor total = (weight * squared(previous)).sum();
  return (weight * previous / total - previous) * s.collapse_rate;
}

}  // namespace

at::Tensor mean_magnitude(const at::Tensor& field) {
  return at::linalg_vector_norm(field, 2, at::IntArrayRef{-1}).mean();
}

void complex_field_verlet_(const FieldVerletCall& call) {
  const at::NoGradGuard no_grad;
  const FieldVerlet& s = call.settings;
  at::Tensor field = call.field.clone(), momentum = call.momentum.clone();
  // The force at the end of a step is that at the start of the next one.
  at::Tensor now = force(field, call.equilibrium, call.nudge, s);
  for (int64_t step = 0; step < call.steps; ++step) {
    momentum.add_(now, s.dt / 2);
    field.add_(momentum, s.dt / s.mass);
    now = force(field, call.equilibrium, call.nudge, s);
    momentum.add_(now, s.dt / 2);
  }
  store(call.field, field, call.skip);
  store(call.momentum, momentum, call.skip);
}

void complex_field_dissipative_(const FieldDissipativeCall& call) {
  const at::NoGradGuard no_grad;
  const FieldDissipative& s = call.settings;
  at::Tensor field = call.field.clone(), length = call.history.clone();
  for (int64_t step = 0; step < call.steps; ++step) {
    if (call.magnitudes) call.magnitudes->select(0, step).copy_(mean_magnitude(field));
    at::Tensor rate =
        complex_field_laplacian(field, s.periodic) * (memory_factor(length, s.memory_gain) * (s.hbar / (2 * s.mass)));
    if (call.previous) rate += collapse(*call.previous, *call.evidence, s);
    if (call.source) rate += *call.source;
    // Divided by i: (re, im) becomes (im, -re).
    field.select(-1, 0).add_(rate.select(-1, 1), s.dt / s.hbar);
    field.select(-1, 1).sub_(rate.select(-1, 0), s.dt / s.hbar);
    length = at::where(length.lt(s.history_capacity), length + 1, length);
  }
  store(call.field, field, call.skip);
  store(call.history, length, call.skip);
}

at::Tensor complex_field_energies(const FieldEnergiesCall& call) {
  const at::NoGradGuard no_grad;
  const FieldVerlet& s = call.settings;
  const at::Tensor field = call.field.to(at::kDouble);
  const at::Tensor kinetic = call.momentum.to(at::kDouble).square().sum() / (2 * s.mass);
  at::Tensor potential = at::zeros({}, field.options());
  if (s.potential != FieldPotential::zero) {
    const at::Tensor d = squared(field - call.equilibrium);
    const bool well = s.potential == FieldPotential::gaussian_well;
    potential = (well ? -at::expm1(d * -0.5) : d * 0.5).sum() * s.stiffness;
  }
  at::Tensor pairs = at::zeros({}, field.options());
  for (const int64_t axis : {0, 1}) {
    const int64_t last = field.size(axis) - 1;
    const at::Tensor first_cell = field.narrow(axis, 0, 1), last_cell = field.narrow(axis, last, 1);
    pairs = pairs + (field.narrow(axis, 1, last) - field.narrow(axis, 0, last)).square().sum();
    pairs = pairs + (s.periodic ? (first_cell - last_cell).square().sum()
                                : first_cell.square().sum() + last_cell.square().sum());
  }
  return at::stack({kinetic, potential, pairs * (s.hbar * s.hbar / (4 * s.mass))});
}

}  // namespace hrm::ops::reference
