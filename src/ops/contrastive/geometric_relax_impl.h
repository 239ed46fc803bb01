#pragma once
// What the files of geometric_relax and contrastive_statistics share: the arguments of the schemas, input checks, and
// the plain ATen retrieval.

#include <tuple>

#include "hrm/ops/contrastive_statistics.h"
#include "hrm/ops/geometric_relax.h"

namespace hrm::ops {

// Arguments as the schema has them: lists of tensors and of numbers.
struct RelaxArguments {
  at::Tensor drive, offset, o;
  GeometricSlots slots;
  at::Tensor metric, rates;
  GeometricNudge nudge;
  GeometricHidden hidden;
  int64_t steps = 0;
  GeometricConstants constants;
  double momentum = 0;
};

RelaxArguments relax_arguments(const at::Tensor& drive, const at::Tensor& offset, const at::Tensor& o,
                               at::TensorList slots, const std::optional<at::Tensor>& filled, const at::Tensor& metric,
                               const at::Tensor& rates, at::TensorList nudge, at::TensorList hidden, int64_t steps,
                               at::ArrayRef<double> constants, double momentum);
GeometricSlots slots_of(at::TensorList slots, const std::optional<at::Tensor>& filled);
GeometricConstants constants_of(at::ArrayRef<double> constants);

// Throw c10::Error with the op's name, what does not fit and the shapes.
void check_slots(const char* op, const at::Tensor& x, const at::Tensor& o, const GeometricSlots& slots);
void check_relax(const RelaxArguments& a);
void check_statistics(const at::Tensor& x, const at::Tensor& o, const at::Tensor& log_sum, const at::Tensor& scales,
                      const GeometricSlots& slots);

// The results of the schemas.
using RelaxResult = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
using StatisticsResult = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

RelaxResult as_result(const GeometricState& state);

namespace reference {

ContrastiveStatistics contrastive_statistics(const at::Tensor& x, const at::Tensor& o, const at::Tensor& log_sum,
                                             const at::Tensor& scales, const GeometricSlots& slots,
                                             const GeometricConstants& constants);

}  // namespace reference
}  // namespace hrm::ops
