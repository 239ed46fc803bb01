#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/library.h>

#include "ops/cuda/launcher.h"
#include "ops/geometry/cuda/lior.h"
#include "ops/geometry/lior_impl.h"

namespace hrm::ops {
namespace {

LiorResult lior_step_cuda(const at::Tensor& v, const at::Tensor& metric, const at::Tensor& resilience, double eps,
                          double dtau) {
  check_lior_step(v, metric, resilience, eps);
  const c10::cuda::CUDAGuard guard(v.device());
  if (!cuda::use_kernel(v)) return reference::lior_step(v, metric, resilience, eps, dtau);
  const int64_t rows = v.size(0), axes = v.size(1);
  const at::Tensor v_rows = v.contiguous(), metric_rows = metric.contiguous(), factors = resilience.contiguous();
  at::Tensor action = at::empty({rows}, v_rows.options()), spd = at::empty({rows}, v_rows.options());
  if (rows == 0) return {action, spd};
  const cuda::LiorStep params{.v = v_rows.const_data_ptr<float>(),
                              .metric = metric_rows.const_data_ptr<float>(),
                              .resilience = factors.const_data_ptr<float>(),
                              .action = action.mutable_data_ptr<float>(),
                              .speed = spd.mutable_data_ptr<float>(),
                              .rows = rows,
                              .axes = axes,
                              .metric_stride = metric.dim() == 3 ? axes * axes : 0,
                              .resilience_stride = resilience.dim(),
                              .diagonal = metric.dim() == 1,
                              .eps = static_cast<float>(eps),
                              .dtau = static_cast<float>(dtau)};
  C10_CUDA_CHECK(cuda::launch(params, cuda::current_stream()));
  return {action, spd};
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, CUDA, m) {
  m.impl("lior_step", &lior_step_cuda);
}

}  // namespace hrm::ops
