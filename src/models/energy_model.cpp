#include "hrm/models/energy_model.h"

#include <ATen/ATen.h>

#include "hrm/base/error.h"

namespace hrm::models {

void EnergyModel::add_gradients(const Contrast& contrast) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> parameters = this->parameters();
  require(contrast.gradients.size() == parameters.size(), ExitCode::unexpected, contrast.gradients.size(),
          " gradients for ", parameters.size(), " parameters");
  for (size_t i = 0; i < parameters.size(); ++i) {
    at::Tensor& gradient = parameters[i].mutable_grad();
    if (!gradient.defined()) gradient = at::zeros_like(parameters[i]);
    gradient.add_(contrast.gradients[i]);
  }
}

}  // namespace hrm::models
