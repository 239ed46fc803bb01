#include "ops/sequence/cuda/sum_rows.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "ops/cuda/launcher.h"
#include "ops/sequence/sum_rows_impl.h"

namespace hrm::ops {
namespace {

at::Tensor sum_rows_cuda(const at::Tensor& x, const at::Tensor& rows, const at::Tensor& back,
                         const std::optional<at::Tensor>& rows_begin, const std::optional<at::Tensor>& back_begin,
                         const std::optional<at::Tensor>& base) {
  const RowMap map{rows, back, rows_begin.value_or(at::Tensor()), back_begin.value_or(at::Tensor())};
  at::Tensor first = base.value_or(at::Tensor());
  check_sum_rows(x, map, first);
  const c10::cuda::CUDAGuard guard(x.device());
  if (!cuda::use_kernel(x)) return reference::sum_rows(x, map, first);
  if (base) first = first.contiguous();
  const at::Tensor in = x.contiguous(), y = at::empty({map.count(), x.size(1)}, x.options());
  if (y.numel() == 0) return y;
  const int64_t pack = 16 / x.element_size();
  TORCH_CHECK(y.numel() / (x.size(1) % pack == 0 ? pack : 1) <= INT32_MAX, "hrm::sum_rows: a result of ", y.sizes(),
              " is larger than its kernel counts");
  const cuda::SumRows params{.x = in.const_data_ptr(),
                             .from = rows.const_data_ptr<int32_t>(),
                             .begin = rows_begin ? rows_begin->const_data_ptr<int32_t>() : nullptr,
                             .base = base ? first.const_data_ptr() : nullptr,
                             .y = y.mutable_data_ptr(),
                             .rows = map.count(),
                             .each = rows_begin ? 0 : rows.size(1),
                             .width = x.size(1),
                             .base_rows = base ? first.size(0) : 0,
                             .element = cuda::element_of(x)};
  C10_CUDA_CHECK(cuda::launch(params, c10::cuda::getCurrentCUDAStream()));
  return y;
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, CUDA, m) {
  m.impl("sum_rows", &sum_rows_cuda);
}

}  // namespace hrm::ops
