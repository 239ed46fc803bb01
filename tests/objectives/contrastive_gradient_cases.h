#pragma once
// Contrastive gradients beside those of backprop, for the tests of every device.

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "hrm/objectives/contrastive.h"
#include "objectives/geometric_memory_cases.h"

namespace hrm::test {

// Inputs with the label that a random linear map gives them, so that there is something to learn.
struct LabelledBatch {
  LabelledBatch(const GeometricMemoryOptions& options, int64_t rows, uint64_t seed = 40) {
    inputs = random_normal({rows, options.features}, seed, at::kDouble);
    labels = inputs.matmul(random_normal({options.features, options.classes}, 9, at::kDouble)).argmax(-1);
  }
  LabelledBatch to(at::Device device, at::ScalarType dtype) const {
    LabelledBatch other = *this;
    other.inputs = inputs.to(device, dtype);
    other.labels = labels.to(device);
    return other;
  }
  at::Tensor inputs, labels;
};

// A memory with the weights of another, in another dtype and on another device.
inline std::shared_ptr<GeometricMemory> copy_of(const GeometricMemory& memory, at::Device device,
                                                at::ScalarType dtype) {
  auto copy = std::make_shared<GeometricMemory>(memory.options(), /*seed=*/0, device);
  const at::NoGradGuard no_grad;
  const auto take = [&](at::Tensor& to, const at::Tensor& from) {
    to.set_data(from.detach().clone().to(device, from.is_floating_point() ? dtype : from.scalar_type()));
  };
  auto parameters = copy->named_parameters();
  for (const auto& from : memory.named_parameters()) take(*parameters.find(from.key()), from.value());
  auto buffers = copy->named_buffers();
  for (const auto& from : memory.named_buffers()) take(*buffers.find(from.key()), from.value());
  return copy;
}

// A window whose nudge is this share of the largest one for which the negative phase is stable.
inline GeometricMemory::Window window_of(const GeometricMemory& memory, double beta_share, bool half_values = false) {
  const at::NoGradGuard no_grad;
  GeometricMemory::Window window = memory.prepare(half_values);
  window.rates.select(0, 2).mul_(beta_share / memory.options().beta_share);
  return window;
}

inline models::Gradients backprop_gradients(const GeometricMemory& memory, const LabelledBatch& batch,
                                            int64_t steps = 64) {
  const objectives::ContrastiveOptions exact{
      .rule = objectives::ContrastiveRule::backprop, .steps = steps, .nudge_steps = steps};
  return objectives::contrastive_gradients(memory, window_of(memory, 0.1), batch.inputs, batch.labels, exact).gradients;
}

// Of each parameter that has a gradient; 0 for one that `ours` lacks.
inline std::map<std::string, double> cosines(const GeometricMemory& memory, const models::Gradients& ours,
                                             const models::Gradients& exact) {
  std::map<std::string, double> result;
  for (size_t i = 0; i < exact.size(); ++i) {
    if (!exact[i].defined() || exact[i].numel() == 0) continue;
    const at::Tensor want = exact[i].cpu();
    // A metric whose axes are all at the limit does not notice a rotation.
    if (want.norm().item<double>() < 1e-5) continue;
    result[memory.parameter_names()[i]] = ours[i].defined() ? cosine(ours[i].cpu(), want) : 0;
  }
  return result;
}

// The parameters whose cosine is below `least`.
inline std::vector<std::string> below(const std::map<std::string, double>& cosines, double least) {
  std::vector<std::string> names;
  for (const auto& [name, value] : cosines) {
    if (!(value >= least)) names.push_back(name);
  }
  return names;
}

// Trains by the contrastive gradient, in the memory's dtype: p -= rate g, each gradient clipped to norm 1.
inline void train_memory(GeometricMemory& memory, int64_t steps, double rate = 0.3) {
  const at::NoGradGuard no_grad;
  for (int64_t step = 0; step < steps; ++step) {
    const LabelledBatch batch =
        LabelledBatch(memory.options(), 32, 100 + static_cast<uint64_t>(step)).to(at::kCPU, at::kDouble);
    const auto result = objectives::contrastive_gradients(memory, window_of(memory, 0.1), batch.inputs, batch.labels,
                                                          {.steps = 16, .nudge_steps = 16});
    const auto parameters = memory.parameters();
    for (size_t i = 0; i < parameters.size(); ++i) {
      const at::Tensor& gradient = result.gradients[i];
      at::Tensor(parameters[i]).sub_(rate * gradient / gradient.norm().clamp_min(1));
    }
    memory.project({});
  }
}

inline GeometricMemoryOptions without_beta_cap(GeometricMemoryOptions options) {
  options.beta_cap = 1e9;
  return options;
}

}  // namespace hrm::test
