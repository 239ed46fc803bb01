#include "hrm/ops/damped_update.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include "ops/act/damped_update_impl.h"
#include "ops/common/op.h"

namespace hrm::ops {

at::Tensor damped_update(const at::Tensor& update, const at::Tensor& state, const std::optional<at::Tensor>& draws,
                         int64_t number, double damping, double std, int64_t seed) {
  static const Op<at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, int64_t, double,
                             double, int64_t)>
      op("hrm::damped_update");
  return op(update, state, draws, number, damping, std, seed);
}

void check_damped_update(const at::Tensor& update, const at::Tensor& state, const std::optional<at::Tensor>& draws,
                         double damping, double std) {
  TORCH_CHECK(update.dim() >= 1 && at::isFloatingType(update.scalar_type()) && update.is_contiguous() &&
                  state.is_contiguous() && state.sizes() == update.sizes() &&
                  state.scalar_type() == update.scalar_type() && state.device() == update.device(),
              "hrm::damped_update: update and state must be contiguous rows of one shape, dtype and device, got ",
              update.sizes(), " ", update.scalar_type(), " and ", state.sizes(), " ", state.scalar_type());
  TORCH_CHECK(damping >= 0 && damping < 1 && std >= 0,
              "hrm::damped_update: damping must be at least 0 and below 1, std at least 0, got ", damping, " and ",
              std);
  TORCH_CHECK(std == 0 || (draws && draws->defined()), "hrm::damped_update: noise of std ", std,
              " needs draws, a number for each row");
  if (std == 0) return;
  TORCH_CHECK(draws->dim() == 1 && draws->size(0) == update.size(0) && draws->scalar_type() == at::kLong &&
                  draws->device() == update.device() && draws->is_contiguous(),
              "hrm::damped_update: draws must be one int64 for each row of update ", update.sizes(), " on ",
              update.device(), ", got ", draws->sizes(), " ", draws->scalar_type(), " on ", draws->device());
  TORCH_CHECK(update.size(0) == 0 || update.numel() / update.size(0) <= int64_t{4} << 32,
              "hrm::damped_update: a row of update has ", update.numel() / std::max<int64_t>(update.size(0), 1),
              " elements, more than 2^34");
}

namespace {

at::Tensor damped_update_cpu(const at::Tensor& update, const at::Tensor& state, const std::optional<at::Tensor>& draws,
                             int64_t number, double damping, double std, int64_t seed) {
  check_damped_update(update, state, draws, damping, std);
  return reference::damped_update(update, state, draws, number, damping, std, seed);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(hrm, m) {
  m.def(
      "damped_update(Tensor update, Tensor state, Tensor? draws, int number, float damping, float std, int seed) -> "
      "Tensor");
}

TORCH_LIBRARY_IMPL(hrm, CPU, m) {
  m.impl("damped_update", &damped_update_cpu);
}

}  // namespace hrm::ops
