#pragma once
// A layered energy and rows for it.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <memory>

#include "hrm/models/layered_energy.h"
#include "hrm/nn/init.h"

namespace hrm::models {

inline std::shared_ptr<LayeredEnergy> small_energy(const LayeredEnergyOptions& options, at::ScalarType dtype,
                                                   at::Device device = at::kCPU, uint64_t seed = 3) {
  auto model = std::make_shared<LayeredEnergy>(options, device);
  nn::init_parameters(*model, seed);
  model->project_();
  model->to(dtype);
  return model;
}

struct LabelledRows {
  at::Tensor inputs, labels;
};

// Rows around a centre for each class, so that there is something to learn.
inline LabelledRows clustered_rows(int64_t rows, int64_t features, int64_t classes, uint64_t seed,
                                   at::ScalarType dtype) {
  auto generator = at::detail::createCPUGenerator(seed);
  const at::Tensor centres = at::randn({classes, features}, at::detail::createCPUGenerator(11), at::kDouble);
  const at::Tensor labels = at::randint(0, classes, {rows}, generator, at::kLong);
  const at::Tensor noise = at::randn({rows, features}, generator, at::kDouble);
  return {(centres.index_select(0, labels) * 0.5 + noise).to(dtype), labels};
}

inline double cosine(const at::Tensor& a, const at::Tensor& b) {
  return ((a * b).sum() / (a.norm() * b.norm())).item<double>();
}

}  // namespace hrm::models
