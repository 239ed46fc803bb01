#include "hrm/optim/sparse_sign_sgd.h"

#include <ATen/ATen.h>

namespace hrm::optim {
namespace {

void check(const at::Tensor& weights, const at::Tensor& ids, const at::Tensor& row_grads, const at::Tensor& lr,
           const at::Tensor& skip) {
  TORCH_CHECK(weights.dim() == 2 && row_grads.dim() == 2 && ids.dim() == 1 && ids.size(0) == row_grads.size(0) &&
                  weights.size(1) == row_grads.size(1) && ids.size(0) >= 1,
              "sparse_sign_sgd_: weights (E, D), ids (N) and row_grads (N, D) do not fit, got ", weights.sizes(), ", ",
              ids.sizes(), " and ", row_grads.sizes());
  TORCH_CHECK(weights.scalar_type() == at::kFloat && row_grads.scalar_type() == at::kFloat,
              "sparse_sign_sgd_: weights and row_grads must be float32, got ", weights.scalar_type(), " and ",
              row_grads.scalar_type());
  TORCH_CHECK(ids.scalar_type() == at::kInt || ids.scalar_type() == at::kLong,
              "sparse_sign_sgd_: ids must be int32 or int64, got ", ids.scalar_type());
  TORCH_CHECK(lr.dim() == 0 && skip.dim() == 0, "sparse_sign_sgd_: lr and skip must be 0-dim, got ", lr.sizes(),
              " and ", skip.sizes());
}

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
  check(weights, ids, row_grads, lr, skip);
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

}  // namespace hrm::optim
