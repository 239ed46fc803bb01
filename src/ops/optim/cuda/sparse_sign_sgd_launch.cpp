#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <limits>

#include "hrm/ops/backend.h"
#include "ops/optim/cuda/sparse_sign_sgd.h"
#include "ops/optim/sparse_sign_sgd_impl.h"

namespace hrm::ops {
namespace {

// A warp does at least one element of a row, and warps are counted in 32 bits.
constexpr int64_t kMaxElements = std::numeric_limits<int32_t>::max();

void sparse_sign_sgd_cuda(at::Tensor& weights, const at::Tensor& ids, const at::Tensor& row_grads, const at::Tensor& lr,
                          double weight_decay, const at::Tensor& skip) {
  check_sparse_sign_sgd(weights, ids, row_grads, lr, skip);
  const c10::cuda::CUDAGuard guard(weights.device());
  if (backend() == Backend::reference || !weights.is_contiguous() || row_grads.numel() > kMaxElements) {
    return reference::sparse_sign_sgd_(weights, ids, row_grads, lr, weight_decay, skip);
  }
  if (weights.size(1) == 0) return;
  const at::Tensor id_list = ids.contiguous();
  const at::Tensor rows = row_grads.contiguous();
  cuda::SparseSignSgdParams params{};
  params.weights = weights.mutable_data_ptr<float>();
  if (id_list.scalar_type() == at::kInt) {
    params.ids32 = id_list.const_data_ptr<int32_t>();
  } else {
    params.ids64 = id_list.const_data_ptr<int64_t>();
  }
  params.row_grads = rows.const_data_ptr<float>();
  params.lr = lr.const_data_ptr<float>();
  params.skip = skip.const_data_ptr<float>();
  params.entries = weights.size(0);
  params.rows = ids.size(0);
  params.dim = weights.size(1);
  params.weight_decay = static_cast<float>(weight_decay);
  C10_CUDA_CHECK(cuda::launch(params, c10::cuda::getCurrentCUDAStream()));
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, CUDA, m) {
  m.impl("sparse_sign_sgd_", &sparse_sign_sgd_cuda);
}

}  // namespace hrm::ops
