#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/library.h>

#include "ops/cuda/launcher.h"
#include "ops/geometry/cuda/rotor.h"
#include "ops/geometry/rotor_impl.h"

namespace hrm::ops {
namespace {

bool rotor_kernel_fits(const at::Tensor& theta, int64_t n) {
  return cuda::use_kernel(theta) && n <= cuda::kMostRotorAxes && theta.numel() <= INT32_MAX / 2;
}

at::Tensor rotor_matrix_cuda(const at::Tensor& theta, int64_t n) {
  check_rotor_matrix(theta, n);
  const c10::cuda::CUDAGuard guard(theta.device());
  if (!rotor_kernel_fits(theta, n)) return reference::rotor_matrix(theta, n);
  const at::Tensor angles = theta.contiguous(), q = at::empty({n, n}, angles.options());
  const cuda::RotorMatrix params{.theta = angles.const_data_ptr<float>(),
                                 .q = q.mutable_data_ptr<float>(),
                                 .angles = static_cast<int>(theta.numel()),
                                 .axes = static_cast<int>(n)};
  C10_CUDA_CHECK(cuda::launch(params, cuda::current_stream()));
  return q;
}

at::Tensor rotor_angle_gradient_cuda(const at::Tensor& theta, const at::Tensor& outer) {
  check_rotor_angle_gradient(theta, outer);
  const c10::cuda::CUDAGuard guard(theta.device());
  if (!rotor_kernel_fits(theta, outer.size(0))) return reference::rotor_angle_gradient(theta, outer);
  const at::Tensor angles = theta.contiguous(), matrix = outer.contiguous();
  at::Tensor gradient = at::empty(theta.sizes(), angles.options());
  if (theta.numel() == 0) return gradient;
  const cuda::RotorAngleGradient params{.theta = angles.const_data_ptr<float>(),
                                        .outer = matrix.const_data_ptr<float>(),
                                        .gradient = gradient.mutable_data_ptr<float>(),
                                        .angles = static_cast<int>(theta.numel()),
                                        .axes = static_cast<int>(outer.size(0))};
  C10_CUDA_CHECK(cuda::launch(params, cuda::current_stream()));
  return gradient;
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, CUDA, m) {
  m.impl("rotor_matrix", &rotor_matrix_cuda);
  m.impl("rotor_angle_gradient", &rotor_angle_gradient_cuda);
}

}  // namespace hrm::ops
