#pragma once
// What the files of sparse_sign_sgd share.

#include "hrm/ops/sparse_sign_sgd.h"

namespace hrm::ops {

// Throws c10::Error with the op's name and the shapes that do not fit.
void check_sparse_sign_sgd(const at::Tensor& weights, const at::Tensor& ids, const at::Tensor& row_grads,
                           const at::Tensor& lr, const at::Tensor& skip);

namespace reference {

// Any device, without host synchronisation on a GPU.
void sparse_sign_sgd_(at::Tensor& weights, const at::Tensor& ids, const at::Tensor& row_grads, const at::Tensor& lr,
                      double weight_decay, const at::Tensor& skip);

}  // namespace reference
}  // namespace hrm::ops
