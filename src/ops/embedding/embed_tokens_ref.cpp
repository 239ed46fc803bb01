// The readable version, the CPU implementation, and the oracle of the CUDA kernels.
#include <ATen/ATen.h>

#include "ops/embedding/embed_tokens_impl.h"

namespace hrm::ops::reference {

void embed_tokens_backward_(const at::Tensor& grad_table, const at::Tensor& grad_x, const at::Tensor& ids) {
  const at::NoGradGuard no_grad;
  const at::Tensor rows = grad_x.to(grad_table.scalar_type()).reshape({-1, grad_table.size(1)});
  grad_table.add_(at::embedding_dense_backward(rows, ids.reshape({-1}), grad_table.size(0), /*padding_idx=*/-1,
                                               /*scale_grad_by_freq=*/false));
}

}  // namespace hrm::ops::reference
