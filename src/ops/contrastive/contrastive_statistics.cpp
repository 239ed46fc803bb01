#include "hrm/ops/contrastive_statistics.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include "ops/common/op.h"
#include "ops/common/optional_tensor.h"
#include "ops/contrastive/geometric_relax_impl.h"

namespace hrm::ops {

ContrastiveStatistics contrastive_statistics(const at::Tensor& x, const at::Tensor& o, const at::Tensor& log_sum,
                                             const at::Tensor& scales, const GeometricSlots& slots,
                                             const GeometricConstants& c) {
  static const Op<StatisticsResult(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                   at::TensorList, const std::optional<at::Tensor>&, at::ArrayRef<double>)>
      op("hrm::contrastive_statistics");
  const std::array constants{c.kappa, c.gamma, c.retrieval_beta, c.cost_eps};
  auto [values, pulls, pulled, costs, row_pulls] =
      op(x, o, log_sum, scales, {slots.keys, slots.key_norms, slots.resilience, slots.values},
         optional_tensor(slots.filled), constants);
  return {values, pulls, pulled, costs, row_pulls};
}

void check_statistics(const at::Tensor& x, const at::Tensor& o, const at::Tensor& log_sum, const at::Tensor& scales,
                      const GeometricSlots& slots) {
  check_slots("contrastive_statistics", x, o, slots);
  for (const at::Tensor& tensor : {log_sum, scales}) {
    TORCH_CHECK(tensor.sizes() == x.sizes().slice(0, 1) && tensor.scalar_type() == x.scalar_type() &&
                    tensor.device() == x.device(),
                "hrm::contrastive_statistics: log_sum and scales must be [", x.size(0), "] ", x.scalar_type(), " on ",
                x.device(), ", got ", tensor.sizes(), " ", tensor.scalar_type(), " on ", tensor.device());
  }
}

namespace {

StatisticsResult contrastive_statistics_cpu(const at::Tensor& x, const at::Tensor& o, const at::Tensor& log_sum,
                                            const at::Tensor& scales, at::TensorList slot_list,
                                            const std::optional<at::Tensor>& filled, at::ArrayRef<double> constants) {
  const GeometricSlots slots = slots_of(slot_list, filled);
  check_statistics(x, o, log_sum, scales, slots);
  auto [values, pulls, pulled, costs, row_pulls] =
      reference::contrastive_statistics(x, o, log_sum, scales, slots, constants_of(constants));
  return {values, pulls, pulled, costs, row_pulls};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(hrm, m) {
  m.def(
      "contrastive_statistics(Tensor x, Tensor o, Tensor log_sum, Tensor scales, Tensor[] slots, Tensor? filled, "
      "float[] constants) -> (Tensor values, Tensor pulls, Tensor pulled, Tensor costs, Tensor row_pulls)");
}

TORCH_LIBRARY_IMPL(hrm, CPU, m) {
  m.impl("contrastive_statistics", &contrastive_statistics_cpu);
}

TORCH_LIBRARY_IMPL(hrm, Autograd, m) {
  m.impl("contrastive_statistics", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace hrm::ops
