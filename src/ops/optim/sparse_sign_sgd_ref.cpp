#include <ATen/ATen.h>

#include "ops/optim/sparse_sign_sgd_impl.h"

namespace hrm::ops::reference {
namespace {

at::Tensor updated(const at::Tensor& rows, const at::Tensor& sums, const at::Tensor& lr, double weight_decay,
                   const at::Tensor& skip) {
  const at::Tensor moved = rows * (1 - lr * weight_decay) - lr * at::sign(sums);
  return at::where(skip.ne(0), rows, moved);
}

// For each position i of a sorted id list: the sum over all positions with the same id. The number of distinct ids
// stays on the device: segments are numbered 0.. in order, the last ones are empty.
at::Tensor sums_by_id(const at::Tensor& sorted_ids, const at::Tensor& rows) {
  const int64_t n = sorted_ids.size(0);
  const at::Tensor starts_new = sorted_ids.slice(0, 1).ne(sorted_ids.slice(0, 0, n - 1)).to(at::kLong);
  const at::Tensor segment = at::cat({at::zeros({1}, starts_new.options()), at::cumsum(starts_new, 0)});
  // Counting by search, not by scatter: no atomics.
  const at::Tensor number = at::arange(n, segment.options());
  const at::Tensor lengths = at::searchsorted(segment, number, /*out_int32=*/false, /*right=*/true) -
                             at::searchsorted(segment, number, /*out_int32=*/false, /*right=*/false);
  const at::Tensor sums = at::segment_reduce(rows, "sum", lengths, /*indices=*/{}, /*offsets=*/{}, /*axis=*/0,
                                             /*unsafe=*/true);
  return sums.index_select(0, segment);
}

}  // namespace

void sparse_sign_sgd_(at::Tensor& weights, const at::Tensor& ids, const at::Tensor& row_grads, const at::Tensor& lr,
                      double weight_decay, const at::Tensor& skip) {
  const at::NoGradGuard no_grad;
  if (weights.size(0) == 1) {  // one puzzle identifier for all, as in Sudoku: every row has the same id
    weights.copy_(updated(weights, row_grads.sum(0, /*keepdim=*/true), lr, weight_decay, skip));
    return;
  }
  const auto [sorted_ids, order] = at::sort(ids.to(at::kLong), /*stable=*/std::optional<bool>(true), /*dim=*/0);
  const at::Tensor sums = sums_by_id(sorted_ids, row_grads.index_select(0, order));
  const at::Tensor rows = weights.index_select(0, sorted_ids);
  // Positions with the same id write the same values, so their order does not matter.
  weights.index_copy_(0, sorted_ids, updated(rows, sums, lr, weight_decay, skip));
}

}  // namespace hrm::ops::reference
