#include "hrm/objectives/contrastive.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>

#include "hrm/objectives/contrastive_rules.h"
#include "hrm/ops/dropout.h"

namespace hrm::objectives {
namespace {

using models::GeometricMemory;
using models::Gradients;

at::Tensor twice(const at::Tensor& tensor) {
  return tensor.defined() ? at::cat({tensor, tensor}) : tensor;
}

ops::GeometricState joined(const ops::GeometricState& a, const ops::GeometricState& b) {
  const auto both = [](const at::Tensor& first, const at::Tensor& second) {
    return first.defined() ? at::cat({first, second}) : at::Tensor();
  };
  return {both(a.offset, b.offset),   both(a.o, b.o),         both(a.h, b.h),
          both(a.log_sum, b.log_sum), both(a.speed, b.speed), both(a.residual, b.residual)};
}

// The inputs stand once: both copies of a row share them.
GeometricMemory::Drive twice(const GeometricMemory::Drive& drive) {
  return {.inputs = drive.inputs, .drive = twice(drive.drive), .hidden = twice(drive.hidden)};
}

Gradients backprop(const GeometricMemory& memory, const at::Tensor& inputs, const at::Tensor& targets, int64_t steps) {
  const at::AutoGradMode grad(true);
  torch::autograd::variable_list parameters;
  for (const auto& parameter : memory.named_parameters()) parameters.push_back(parameter.value());
  return torch::autograd::grad({memory.backprop_loss(inputs, targets, steps)}, parameters, {}, std::nullopt,
                               /*create_graph=*/false, /*allow_unused=*/true);
}

// Metric and angles of ContrastiveRule::scalar. `start`: where the free phase began; `difference`: dL / beta.
void add_scalar_rule(const GeometricMemory& memory, const GeometricMemory::Window& window,
                     const ops::GeometricState& start, const ops::GeometricState& free, const at::Tensor& difference,
                     Gradients& gradients) {
  TORCH_CHECK(window.root_metric.defined(), "contrastive_gradients: the scalar rule needs a diagonal metric");
  const at::Tensor moved = (free.offset - start.offset).mean(0, /*keepdim=*/true);
  const at::Tensor w = (moved.narrow(1, 0, window.root_metric.size(0)) / window.root_metric).squeeze(0);
  const ScalarDirection direction =
      scalar_direction(w, memory.chart(window, moved).squeeze(0), memory.angles().size(0));
  memory.place(gradients, "log_metric", -difference * direction.g / window.root_metric.square());
  memory.place(gradients, "angles", -difference * direction.theta);
}

}  // namespace

at::Tensor nudge_factors(const at::Tensor& logits, const at::Tensor& targets, const at::Tensor& most) {
  const at::Tensor right = logits.softmax(-1).gather(1, targets.unsqueeze(1)).squeeze(1);
  return at::minimum((4 * (1 - right)).clamp(1e-6, 1).reciprocal(), most);
}

ContrastiveResult contrastive_gradients(const GeometricMemory& memory, const GeometricMemory::Window& window,
                                        const at::Tensor& inputs, const at::Tensor& targets,
                                        const ContrastiveOptions& options) {
  const at::NoGradGuard no_grad;
  const int64_t rows = inputs.size(0);
  const GeometricMemory::Drive drive = memory.drive(window, inputs);
  ContrastiveResult result;
  result.free = memory.free_phase(window, drive, options.steps);
  result.drive = drive.drive;
  const ops::GeometricState& free = result.free;

  const at::Tensor logits = memory.logits(free.o), log_probs = logits.log_softmax(-1);
  const at::Tensor chosen = targets.unsqueeze(1);
  result.loss = -log_probs.gather(1, chosen).mean();
  result.accuracy = logits.argmax(-1).eq(targets).to(logits.scalar_type()).mean();
  result.speed = free.speed.mean() / static_cast<double>(std::max<int64_t>(options.steps, 1));
  result.speed_plus = result.speed_minus = at::zeros_like(result.speed);
  result.residual = free.residual.max();
  result.beta = at::zeros_like(result.speed);

  if (options.rule == ContrastiveRule::backprop) {
    result.gradients = backprop(memory, inputs, targets, options.steps);
    return result;
  }
  const at::Tensor beta = window.rates.select(0, 2);
  const at::Tensor factors = options.beta_per_row
                                 ? nudge_factors(logits, targets, (options.most_beta / beta).clamp_min(1))
                                 : at::ones({rows}, free.o.options());
  const auto nudge_steps = static_cast<double>(options.nudge_steps);
  result.gradients.resize(memory.parameter_names().size());
  if (options.rule == ContrastiveRule::symmetric) {
    const at::Tensor signs = at::cat({factors, -factors});
    const GeometricMemory::Drive both = twice(drive);
    ops::GeometricState start = free;
    start.offset = twice(free.offset);
    start.o = twice(free.o);
    start.h = twice(free.h);
    const ops::GeometricState nudged =
        memory.nudged_phase(window, both, start, twice(targets), signs, options.nudge_steps);
    result.gradients =
        memory.energy_gradients(window, both, nudged, (2 * static_cast<double>(rows) * beta * signs).reciprocal());
    result.beta = (beta * factors).mean();
    const at::Tensor speeds = nudged.speed.view({2, rows}).mean(1) / nudge_steps;
    result.speed_plus = speeds.select(0, 0);
    result.speed_minus = speeds.select(0, 1);
    result.residual = at::maximum(result.residual, nudged.residual.max());
  } else if (options.rule == ContrastiveRule::one_sided) {
    const ops::GeometricState nudged = memory.nudged_phase(window, drive, free, targets, factors, options.nudge_steps);
    const at::Tensor scales = (static_cast<double>(rows) * beta * factors).reciprocal();
    result.gradients = memory.energy_gradients(window, twice(drive), joined(nudged, free), at::cat({scales, -scales}));
    result.beta = (beta * factors).mean();
    result.speed_plus = nudged.speed.mean() / nudge_steps;
    result.residual = at::maximum(result.residual, nudged.residual.max());
  } else if (options.rule == ContrastiveRule::scalar) {
    result.beta = beta;
    const ops::GeometricState start = memory.free_phase(window, drive, 0);
    const at::Tensor ones = at::ones({rows}, free.o.options());
    const ops::GeometricState nudged = memory.nudged_phase(window, drive, start, targets, ones, options.nudge_steps);
    result.speed_plus = nudged.speed.mean() / nudge_steps;
    result.residual = at::maximum(result.residual, nudged.residual.max());
    const at::Tensor difference = window.cells.mean() * (result.speed_plus - result.speed) / beta;
    add_scalar_rule(memory, window, start, free, difference, result.gradients);
  }
  const ReadoutGradient readout = readout_gradient(logits, free.o, targets);
  memory.place(result.gradients, "readout.weight", readout.weight);
  memory.place(result.gradients, "readout.bias", readout.bias);
  return result;
}

models::Gradients spsa_gradients(GeometricMemory& memory, const at::Tensor& inputs, const at::Tensor& targets,
                                 const at::Tensor& counter, bool half_values, const SpsaOptions& options) {
  const at::NoGradGuard no_grad;
  const at::Tensor chosen = targets.unsqueeze(1);
  const auto loss = [&] {
    const GeometricMemory::Window window = memory.prepare(half_values);
    const ops::GeometricState state = memory.free_phase(window, memory.drive(window, inputs), options.steps);
    return -memory.logits(state.o).log_softmax(-1).gather(1, chosen).mean();
  };
  return spsa_gradients(memory.parameters(), loss, counter, options);
}

models::Gradients spsa_gradients(const std::vector<at::Tensor>& parameters, const std::function<at::Tensor()>& loss,
                                 const at::Tensor& counter, const SpsaOptions& options) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> before, signs;
  for (const at::Tensor& parameter : parameters) before.push_back(parameter.clone());
  Gradients gradients(parameters.size());
  const auto moved = [&](double sigma) {
    for (size_t i = 0; i < parameters.size(); ++i) parameters[i].copy_(before[i] + sigma * signs[i]);
  };
  for (int64_t direction = 0; direction < options.directions; ++direction) {
    signs.clear();
    for (size_t i = 0; i < parameters.size(); ++i) {
      // Kept with probability 1/2 and doubled: 2 or 0.
      const auto seed = options.seed + static_cast<uint64_t>(direction) * 1024 + i;
      signs.push_back(ops::dropout(at::ones_like(parameters[i]), counter, 0.5, static_cast<int64_t>(seed)) - 1);
    }
    moved(options.sigma);
    const at::Tensor above = loss();
    moved(-options.sigma);
    const at::Tensor below = loss();
    for (size_t i = 0; i < parameters.size(); ++i) {
      const at::Tensor part = spsa_part(above, below, signs[i], options.sigma, options.directions);
      gradients[i] = gradients[i].defined() ? gradients[i] + part : part;
    }
  }
  for (size_t i = 0; i < parameters.size(); ++i) parameters[i].copy_(before[i]);
  return gradients;
}

}  // namespace hrm::objectives
