#include "hrm/ops/sparse_sign_sgd.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include "ops/common/op.h"
#include "ops/optim/sparse_sign_sgd_impl.h"

namespace hrm::ops {

void check_sparse_sign_sgd(const at::Tensor& weights, const at::Tensor& ids, const at::Tensor& row_grads,
                           const at::Tensor& lr, const at::Tensor& skip) {
  TORCH_CHECK(weights.dim() == 2 && row_grads.dim() == 2 && ids.dim() == 1 && ids.size(0) == row_grads.size(0) &&
                  weights.size(1) == row_grads.size(1) && ids.size(0) >= 1,
              "hrm::sparse_sign_sgd_: weights (E, D), ids (N) and row_grads (N, D) do not fit, got ", weights.sizes(),
              ", ", ids.sizes(), " and ", row_grads.sizes());
  TORCH_CHECK(weights.scalar_type() == at::kFloat && row_grads.scalar_type() == at::kFloat,
              "hrm::sparse_sign_sgd_: weights and row_grads must be float32, got ", weights.scalar_type(), " and ",
              row_grads.scalar_type());
  TORCH_CHECK(ids.scalar_type() == at::kInt || ids.scalar_type() == at::kLong,
              "hrm::sparse_sign_sgd_: ids must be int32 or int64, got ", ids.scalar_type());
  TORCH_CHECK(lr.dim() == 0 && skip.dim() == 0 && lr.scalar_type() == at::kFloat && skip.scalar_type() == at::kFloat,
              "hrm::sparse_sign_sgd_: lr and skip must be 0-dim float32, got ", lr.scalar_type(), " of shape ",
              lr.sizes(), " and ", skip.scalar_type(), " of shape ", skip.sizes());
  for (const at::Tensor* other : {&ids, &row_grads, &lr, &skip}) {
    TORCH_CHECK(other->device() == weights.device(), "hrm::sparse_sign_sgd_: all tensors must be on one device, got ",
                weights.device(), " and ", other->device());
  }
}

void sparse_sign_sgd_(at::Tensor& weights, const at::Tensor& ids, const at::Tensor& row_grads, const at::Tensor& lr,
                      double weight_decay, const at::Tensor& skip) {
  static const Op<void(at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, double, const at::Tensor&)>
      op("hrm::sparse_sign_sgd_");
  op(weights, ids, row_grads, lr, weight_decay, skip);
}

namespace {

void sparse_sign_sgd_cpu(at::Tensor& weights, const at::Tensor& ids, const at::Tensor& row_grads, const at::Tensor& lr,
                         double weight_decay, const at::Tensor& skip) {
  check_sparse_sign_sgd(weights, ids, row_grads, lr, skip);
  reference::sparse_sign_sgd_(weights, ids, row_grads, lr, weight_decay, skip);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(hrm, m) {
  m.def(
      "sparse_sign_sgd_(Tensor(a!) weights, Tensor ids, Tensor row_grads, Tensor lr, float weight_decay, Tensor skip) "
      "-> ()");
}

TORCH_LIBRARY_IMPL(hrm, CPU, m) {
  m.impl("sparse_sign_sgd_", &sparse_sign_sgd_cpu);
}

}  // namespace hrm::ops
