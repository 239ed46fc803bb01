#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "ops/cuda/few_rows.h"
#include "ops/cuda/few_rows_product.h"
#include "ops/cuda/launcher.h"
#include "ops/sizes.h"

namespace hrm::ops::cuda {

at::Tensor product_of_few_rows(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& residual, bool gated) {
  if (!use_kernel(x) || x.numel() == 0 || weight.scalar_type() != x.scalar_type()) return {};
  FewRows params{};
  params.rows = x.numel() / x.size(-1);
  params.inner = x.size(-1);
  params.width = weight.size(0) / (gated ? 2 : 1);
  params.gated = gated;
  params.element = element_of(x);
  if (!fits(params)) return {};
  const c10::cuda::CUDAGuard guard(x.device());
  const at::Tensor rows = aligned_rows(x), columns = aligned_rows(weight);
  const at::Tensor added = residual.defined() ? residual.contiguous() : residual;
  at::Tensor out = at::empty(with_last_size(x, params.width), rows.options());
  params.x = rows.const_data_ptr();
  params.weight = columns.const_data_ptr();
  params.residual = residual.defined() ? added.const_data_ptr() : nullptr;
  params.out = out.mutable_data_ptr();
  C10_CUDA_CHECK(launch(params, c10::cuda::getCurrentCUDAStream()));
  return out;
}

}  // namespace hrm::ops::cuda
