#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "ops/cuda/launcher.h"
#include "ops/loss/cuda/softmax_loss.h"
#include "ops/loss/softmax_loss_impl.h"

namespace hrm::ops {
namespace {

at::Tensor softmax_loss_cuda(const at::Tensor& logits, const at::Tensor& labels,
                             const std::optional<at::Tensor>& weights) {
  check_softmax_loss(logits, labels, weights);
  const c10::cuda::CUDAGuard guard(logits.device());
  if (!cuda::use_kernel(logits)) return reference::softmax_loss_(logits, labels, weights);
  at::Tensor loss = at::empty(labels.sizes(), logits.options().dtype(at::kFloat));
  if (logits.size(0) == 0) return loss;
  const at::Tensor ids = labels.contiguous(), factors = weights ? weights->contiguous() : at::Tensor();
  cuda::SoftmaxLoss params{};
  params.logits = weights ? logits.mutable_data_ptr() : const_cast<void*>(logits.const_data_ptr());
  params.labels = ids.const_data_ptr();
  params.weights = weights ? factors.const_data_ptr<float>() : nullptr;
  params.loss = loss.mutable_data_ptr<float>();
  params.rows = logits.size(0);
  params.vocab = logits.size(1);
  params.pitch = logits.size(0) > 1 ? logits.stride(0) : logits.size(1);
  params.wide_labels = labels.scalar_type() == at::kLong;
  params.element = cuda::element_of(logits);
  C10_CUDA_CHECK(cuda::launch(params, c10::cuda::getCurrentCUDAStream()));
  return loss;
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, CUDA, m) {
  m.impl("softmax_loss_", &softmax_loss_cuda);
}

}  // namespace hrm::ops
