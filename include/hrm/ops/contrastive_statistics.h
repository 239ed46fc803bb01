#pragma once
// Sums over rows of a geometric memory's retrieval, of which the derivatives of its energy are made in closed form.

#include <ATen/core/Tensor.h>

#include "hrm/ops/geometric_relax.h"

namespace hrm::ops {

// With w and c as in geometric_relax.h, e_bk = w_bk R_k / c_bk, and a scale s_b for each row:
struct ContrastiveStatistics {
  at::Tensor values;     // (S, d): sum_b s_b w_bk o_b
  at::Tensor pulls;      // (S): sum_b s_b e_bk
  at::Tensor pulled;     // (S, m): sum_b s_b e_bk X_b
  at::Tensor costs;      // (S): sum_b s_b w_bk c_bk
  at::Tensor row_pulls;  // (R): sum_k e_bk
};

// x (R, m), o (R, d), log_sum (R): a state of geometric_relax. scales (R): +1/(2 beta B) for rows of the positive phase
// and -1/(2 beta B) for those of the negative one, beta of the row, give the symmetric difference of the statistics.
//
// Slots behind `slots.filled` get zeros and are not read. Weights are computed tile by tile and never stored as rows x
// slots; every sum has a fixed order. Runs on the current stream and can be captured. No derivative.
ContrastiveStatistics contrastive_statistics(const at::Tensor& x, const at::Tensor& o, const at::Tensor& log_sum,
                                             const at::Tensor& scales, const GeometricSlots& slots,
                                             const GeometricConstants& constants);

}  // namespace hrm::ops
