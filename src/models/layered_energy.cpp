#include "hrm/models/layered_energy.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "hrm/base/error.h"

namespace hrm::models {
namespace {

// The least curvature of Psi: h'' = 1 / (h (1 - h)).
constexpr double kLeastCurvature = 4;

at::Tensor zero_like(const at::Tensor& tensor) {
  return at::zeros({}, tensor.options());
}

std::vector<at::Tensor> activities(const std::vector<at::Tensor>& states) {
  std::vector<at::Tensor> result;
  result.reserve(states.size());
  for (const at::Tensor& state : states) result.push_back(at::sigmoid(state));
  return result;
}

std::vector<at::Tensor> part(const std::vector<at::Tensor>& states, int64_t begin, int64_t rows) {
  std::vector<at::Tensor> result;
  for (const at::Tensor& state : states) result.push_back(state.narrow(0, begin, rows));
  return result;
}

at::Tensor mean_cost(const at::Tensor& logits, const at::Tensor& targets) {
  return -(at::log_softmax(logits, -1) * targets).sum() / logits.size(0);
}

at::Tensor count_correct(const at::Tensor& logits, const at::Tensor& labels) {
  return logits.argmax(-1).eq(labels).sum();
}

}  // namespace

DenseEnergyLayer::DenseEnergyLayer(int64_t in, int64_t out, at::Device device)
    : weight_(register_parameter("weight", at::empty({out, in}, at::device(device).dtype(at::kFloat)))),
      bias_(register_parameter("bias", at::empty({out}, at::device(device).dtype(at::kFloat)))) {}

at::Tensor DenseEnergyLayer::up(const at::Tensor& below) const {
  return at::addmm(bias_, below.flatten(1), weight_.t());
}

at::Tensor DenseEnergyLayer::down(const at::Tensor& above) const {
  return at::mm(above, weight_);
}

at::Tensor DenseEnergyLayer::weight_statistic(const at::Tensor& below, const at::Tensor& above) const {
  return at::mm(above.t(), below.flatten(1));
}

at::Tensor DenseEnergyLayer::bias_statistic(const at::Tensor& above) const {
  return above.sum(0);
}

at::Tensor DenseEnergyLayer::norm_bound() const {
  const at::NoGradGuard no_grad;
  const bool wide = weight_.size(1) > weight_.size(0);
  const at::Tensor gram = wide ? at::mm(weight_, weight_.t()) : at::mm(weight_.t(), weight_);
  return at::mm(gram, gram).square().sum().pow(0.125);
}

void DenseEnergyLayer::scale_(const at::Tensor& factor) {
  const at::NoGradGuard no_grad;
  weight_.mul_(factor);
}

LayeredEnergy::LayeredEnergy(const LayeredEnergyOptions& options, at::Device device) : options_(options) {
  require(!options.hidden.empty(), ExitCode::usage, "a layered energy needs a hidden layer");
  require(options.inputs >= 1 && options.classes >= 1 && options.free_steps >= 1, ExitCode::usage,
          "a layered energy needs inputs, classes and steps of at least 1, not ", options.inputs, ", ", options.classes,
          " and ", options.free_steps);
  require(options.momentum >= 0 && options.momentum < 1, ExitCode::usage, "the momentum ", options.momentum,
          " of a relaxation is not within 0 and 1");
  require(options.margin > 0 && options.margin < 1, ExitCode::usage, "the margin ", options.margin,
          " of a layered energy is not between 0 and 1");
  const auto list = register_module("layers", std::make_shared<torch::nn::Module>());
  int64_t below = options.inputs;
  for (const int64_t width : options.hidden) {
    require(width >= 1, ExitCode::usage, "a hidden layer of width ", width, " is empty");
    layers_.push_back(list->register_module(std::to_string(layers_.size()),
                                            std::make_shared<DenseEnergyLayer>(below, width, device)));
    below = width;
  }
  readout_ = register_module("readout", std::make_shared<DenseEnergyLayer>(below, options.classes, device));
  const auto floats = at::device(device).dtype(at::kFloat);
  input_mean_ = register_buffer("input_mean", at::zeros({options.inputs}, floats));
  input_deviation_ = register_buffer("input_deviation", at::ones({}, floats));
}

void LayeredEnergy::set_input_scaling(const at::Tensor& mean, const at::Tensor& deviation) {
  input_mean_.copy_(mean);
  input_deviation_.copy_(deviation);
}

std::vector<at::Tensor> LayeredEnergy::start(const at::Tensor& drive) const {
  std::vector<at::Tensor> states{drive};
  for (size_t l = 1; l < layers_.size(); ++l) states.push_back(layers_[l]->up(at::sigmoid(states.back())));
  return states;
}

at::Tensor LayeredEnergy::one_hot(const at::Tensor& labels) const {
  const at::Tensor classes = at::arange(options_.classes, labels.options());
  return labels.unsqueeze(1).eq(classes).to(parameters().front().scalar_type());
}

at::Tensor LayeredEnergy::logits_of(const std::vector<at::Tensor>& states) const {
  return readout_->up(at::sigmoid(states.back()));
}

at::Tensor LayeredEnergy::coupling() const {
  const at::NoGradGuard no_grad;
  // A layer is coupled to the one below and the one above: the norm of the whole is at most the largest sum of both.
  at::Tensor coupling = zero_like(parameters().front()), below = coupling;
  for (size_t l = 1; l < layers_.size(); ++l) {
    const at::Tensor bound = layers_[l]->norm_bound();
    coupling = at::maximum(coupling, below + bound);
    below = bound;
  }
  return coupling;
}

at::Tensor LayeredEnergy::contraction() const {
  return coupling() / kLeastCurvature;
}

at::Tensor LayeredEnergy::step_size(const Nudge& nudge) const {
  const at::NoGradGuard no_grad;
  at::Tensor coupling = this->coupling();
  if (nudge.strength.defined()) coupling = coupling + nudge.beta * readout_->norm_bound().square() / 2;
  return (coupling / kLeastCurvature + 1).reciprocal();
}

LayeredEnergy::Relaxed LayeredEnergy::relax(const at::Tensor& drive, std::vector<at::Tensor> states, int64_t steps,
                                            const Nudge& nudge) const {
  const at::Tensor dt = step_size(nudge);
  const size_t last = layers_.size() - 1;
  std::vector<at::Tensor> velocity(states.size());
  for (int64_t step = 0; step < steps; ++step) {
    const std::vector<at::Tensor> h = activities(states);
    for (size_t l = 0; l <= last; ++l) {
      at::Tensor force = (l == 0 ? drive : layers_[l]->up(h[l - 1])) - states[l];
      if (l < last) {
        force = force + layers_[l + 1]->down(h[l + 1]).view_as(force);
      } else if (nudge.strength.defined()) {
        const at::Tensor error = at::softmax(readout_->up(h[l]), -1) - nudge.targets;
        force = force - readout_->down(nudge.strength * error).view_as(force);
      }
      velocity[l] = step == 0 ? dt * force : options_.momentum * velocity[l] + dt * force;
    }
    for (size_t l = 0; l <= last; ++l) states[l] = states[l] + velocity[l];
  }
  at::Tensor residual = zero_like(drive);
  if (steps > 0) {
    const at::NoGradGuard no_grad;
    for (const at::Tensor& move : velocity) residual = at::maximum(residual, move.detach().abs().max());
  }
  return {std::move(states), residual};
}

int64_t LayeredEnergy::needed_steps() const {
  return layers_.size() == 1 ? 0 : options_.free_steps;
}

LayeredEnergy::Relaxed LayeredEnergy::relax_free(const at::Tensor& inputs) const {
  const at::Tensor drive = layers_[0]->up(inputs);
  return relax(drive, start(drive), needed_steps(), {});
}

LayeredEnergy::Relaxed LayeredEnergy::relax_nudged(const at::Tensor& inputs, const at::Tensor& labels,
                                                   const std::vector<at::Tensor>& start, const at::Tensor& strength,
                                                   const at::Tensor& beta, int64_t steps) const {
  return relax(layers_[0]->up(inputs), start, steps, {strength, beta, one_hot(labels)});
}

at::Tensor LayeredEnergy::energy(const at::Tensor& inputs, const std::vector<at::Tensor>& states) const {
  at::Tensor sum = zero_like(inputs), below = inputs;
  for (size_t l = 0; l < layers_.size(); ++l) {
    // Psi(sigmoid(u)) = sigmoid(u) u - log(1 + exp(u))
    const at::Tensor h = at::sigmoid(states[l]);
    sum = sum + (h * (states[l] - layers_[l]->up(below)) - at::softplus(states[l])).sum();
    below = h;
  }
  return sum / inputs.size(0);
}

at::Tensor LayeredEnergy::cost(const std::vector<at::Tensor>& states, const at::Tensor& labels) const {
  return mean_cost(logits_of(states), one_hot(labels));
}

std::vector<at::Tensor> LayeredEnergy::statistics_difference(const at::Tensor& inputs,
                                                             const std::vector<at::Tensor>& states,
                                                             const std::vector<at::Tensor>& minus) const {
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> h = activities(states), other = activities(minus);
  const double scale = -1.0 / static_cast<double>(inputs.size(0));
  std::vector<at::Tensor> result;
  for (size_t l = 0; l < layers_.size(); ++l) {
    const at::Tensor difference = h[l] - other[l];
    // a b^T - a' b'^T = (a - a') mean(b)^T + mean(a) (b - b')^T
    at::Tensor weight;
    if (l == 0) {
      weight = layers_[l]->weight_statistic(inputs, difference);
    } else {
      weight = layers_[l]->weight_statistic((h[l - 1] + other[l - 1]) / 2, difference) +
               layers_[l]->weight_statistic(h[l - 1] - other[l - 1], (h[l] + other[l]) / 2);
    }
    result.push_back(weight * scale);
    result.push_back(layers_[l]->bias_statistic(difference) * scale);
  }
  return result;
}

at::Tensor LayeredEnergy::beta_of(const Nudging& nudging) const {
  const at::NoGradGuard no_grad;
  const at::Tensor curvature = readout_->norm_bound().square() / 2;
  return (nudging.share * kLeastCurvature / curvature).clamp_max(nudging.beta);
}

Contrast LayeredEnergy::contrast(const at::Tensor& inputs, const at::Tensor& labels, const Nudging& nudging) const {
  const at::NoGradGuard no_grad;
  const int64_t rows = inputs.size(0);
  const at::Tensor drive = layers_[0]->up(inputs), targets = one_hot(labels);
  const Relaxed free = relax(drive, start(drive), needed_steps(), {});
  const at::Tensor free_logits = logits_of(free.states);

  // +beta and -beta are the two halves of one batch.
  const at::Tensor beta = beta_of(nudging), plus = beta.expand({rows, 1});
  const auto both = [&](const at::Tensor& tensor) { return nudging.one_sided ? tensor : at::cat({tensor, tensor}); };
  const Nudge nudge{nudging.one_sided ? plus : at::cat({plus, -plus}), beta, both(targets)};
  std::vector<at::Tensor> from;
  for (const at::Tensor& state : free.states) from.push_back(both(state));
  const int64_t steps = nudging.steps > 0 ? nudging.steps : options_.free_steps;
  const Relaxed nudged = relax(both(drive), std::move(from), steps, nudge);

  Contrast result;
  result.loss = mean_cost(free_logits, targets);
  result.correct = count_correct(free_logits, labels);
  result.beta = beta;
  result.residual = at::stack({free.residual, nudged.residual});
  result.gradients = statistics_difference(inputs, part(nudged.states, 0, rows),
                                           nudging.one_sided ? free.states : part(nudged.states, rows, rows));
  const at::Tensor width = nudging.one_sided ? beta : 2 * beta;
  for (at::Tensor& gradient : result.gradients) gradient.div_(width);
  add_readout_gradients(free.states.back(), free_logits, targets, result);
  return result;
}

// The readout is no part of E: its gradient is that of the cost at the free state.
void LayeredEnergy::add_readout_gradients(const at::Tensor& top, const at::Tensor& logits, const at::Tensor& targets,
                                          Contrast& result) const {
  const at::Tensor error = (at::softmax(logits, -1) - targets) / logits.size(0);
  result.gradients.push_back(readout_->weight_statistic(at::sigmoid(top), error));
  result.gradients.push_back(readout_->bias_statistic(error));
}

Contrast LayeredEnergy::readout_only(const at::Tensor& inputs, const at::Tensor& labels) const {
  const at::NoGradGuard no_grad;
  const at::Tensor targets = one_hot(labels);
  const Relaxed free = relax_free(inputs);
  const at::Tensor found = logits_of(free.states);
  Contrast result;
  result.loss = mean_cost(found, targets);
  result.correct = count_correct(found, labels);
  result.beta = zero_like(result.loss);
  result.residual = at::stack({free.residual, zero_like(free.residual)});
  result.gradients.resize(2 * layers_.size());
  add_readout_gradients(free.states.back(), found, targets, result);
  return result;
}

Contrast LayeredEnergy::by_autograd(const at::Tensor& inputs, const at::Tensor& labels, int64_t steps) const {
  const at::AutoGradMode with_gradient(true);
  const at::Tensor drive = layers_[0]->up(inputs);
  const Relaxed free = relax(drive, start(drive), steps, {});
  const at::Tensor found = logits_of(free.states), loss = mean_cost(found, one_hot(labels));
  Contrast result;
  result.gradients = torch::autograd::grad({loss}, parameters());
  result.loss = loss.detach();
  result.correct = count_correct(found.detach(), labels);
  result.beta = zero_like(result.loss);
  result.residual = at::stack({free.residual, zero_like(free.residual)});
  return result;
}

Contrast LayeredEnergy::backprop(const at::Tensor& inputs, const at::Tensor& labels) const {
  return by_autograd(inputs, labels, options_.free_steps);
}

at::Tensor LayeredEnergy::feed_forward_logits(const at::Tensor& inputs) const {
  const at::NoGradGuard no_grad;
  return logits_of(start(layers_[0]->up(inputs)));
}

Contrast LayeredEnergy::feed_forward_backprop(const at::Tensor& inputs, const at::Tensor& labels) const {
  return by_autograd(inputs, labels, /*steps=*/0);
}

at::Tensor LayeredEnergy::logits(const at::Tensor& inputs) const {
  const at::NoGradGuard no_grad;
  return logits_of(relax_free(inputs).states);
}

void LayeredEnergy::project_(const at::Tensor& skip) {
  const at::NoGradGuard no_grad;
  // Layers between two others share the limit.
  const double limit = options_.margin * kLeastCurvature / (layers_.size() > 2 ? 2 : 1);
  for (size_t l = 1; l < layers_.size(); ++l) {
    const at::Tensor factor = (limit / layers_[l]->norm_bound()).clamp_max(1);
    layers_[l]->scale_(skip.defined() ? at::where(skip.ne(0), at::ones_like(factor), factor) : factor);
  }
}

}  // namespace hrm::models
