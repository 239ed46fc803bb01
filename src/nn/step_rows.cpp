#include "hrm/nn/step_rows.h"

#include <utility>

namespace hrm::nn {

StepRows step_product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& residual, const RmsNorm* next) {
  if (next == nullptr) return {ops::decode_linear(x, weight, {.residual = residual})};
  auto [y, ahead] = ops::decode_linear_ahead(x, weight, residual, next->scale());
  return {std::move(y), std::move(ahead)};
}

}  // namespace hrm::nn
