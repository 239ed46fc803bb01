#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "ops/cuda/launcher.h"
#include "ops/loss/cuda/softmax_loss_part.h"
#include "ops/loss/softmax_loss_part_impl.h"

namespace hrm::ops {
namespace {

cuda::SoftmaxLossPart logits_part(const at::Tensor& logits, const at::Tensor& ids, int64_t first, bool written) {
  cuda::SoftmaxLossPart part{};
  part.logits = written ? logits.mutable_data_ptr() : const_cast<void*>(logits.const_data_ptr());
  part.labels = ids.const_data_ptr();
  part.rows = logits.size(0);
  part.vocab = logits.size(1);
  part.pitch = logits.size(0) > 1 ? logits.stride(0) : logits.size(1);
  part.first = first;
  part.wide_labels = ids.scalar_type() == at::kLong;
  part.element = cuda::element_of(logits);
  return part;
}

at::Tensor softmax_loss_facts_cuda(const at::Tensor& logits, const at::Tensor& labels, int64_t first, bool with_mean) {
  check_softmax_loss_facts(logits, labels, first);
  const c10::cuda::CUDAGuard guard(logits.device());
  if (!cuda::use_kernel(logits)) return reference::softmax_loss_facts(logits, labels, first, with_mean);
  at::Tensor facts = at::empty({logits.size(0), with_mean ? 4 : 3}, logits.options().dtype(at::kFloat));
  if (logits.size(0) == 0) return facts;
  const at::Tensor ids = labels.contiguous();
  C10_CUDA_CHECK(cuda::launch(cuda::SoftmaxLossFacts{.part = logits_part(logits, ids, first, /*written=*/false),
                                                     .facts = facts.mutable_data_ptr<float>(),
                                                     .with_mean = with_mean},
                              c10::cuda::getCurrentCUDAStream()));
  return facts;
}

at::Tensor softmax_loss_part_cuda(const at::Tensor& logits, const at::Tensor& labels, int64_t first,
                                  const at::Tensor& facts, const std::optional<at::Tensor>& weights) {
  check_softmax_loss_part(logits, labels, facts, weights);
  const c10::cuda::CUDAGuard guard(logits.device());
  if (!cuda::use_kernel(logits)) return reference::softmax_loss_part_(logits, labels, first, facts, weights);
  at::Tensor loss = at::empty(labels.sizes(), facts.options());
  if (logits.size(0) == 0) return loss;
  const at::Tensor ids = labels.contiguous(), all = facts.contiguous(),
                   factors = weights ? weights->contiguous() : at::Tensor();
  C10_CUDA_CHECK(cuda::launch(cuda::SoftmaxLossOfParts{.part = logits_part(logits, ids, first, weights.has_value()),
                                                       .facts = all.const_data_ptr<float>(),
                                                       .parts = static_cast<int>(all.size(0)),
                                                       .values = static_cast<int>(all.size(2)),
                                                       .weights = weights ? factors.const_data_ptr<float>() : nullptr,
                                                       .loss = loss.mutable_data_ptr<float>()},
                              c10::cuda::getCurrentCUDAStream()));
  return loss;
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, CUDA, m) {
  m.impl("softmax_loss_facts", &softmax_loss_facts_cuda);
  m.impl("softmax_loss_part_", &softmax_loss_part_cuda);
}

}  // namespace hrm::ops
