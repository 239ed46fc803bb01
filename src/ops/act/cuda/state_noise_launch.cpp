#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "ops/act/cuda/state_noise.h"
#include "ops/act/state_noise_impl.h"
#include "ops/cuda/launcher.h"

namespace hrm::ops {
namespace {

void add_state_noise_cuda_(const at::Tensor& z, const at::Tensor& keys, const at::Tensor& segments, double std,
                           int64_t seed) {
  check_state_noise(z, keys, segments, std);
  const c10::cuda::CUDAGuard guard(z.device());
  if (!cuda::use_kernel(z)) return reference::add_state_noise_(z, keys, segments, std, seed);
  cuda::StateNoise params{};
  params.z = z.mutable_data_ptr();
  params.keys = keys.const_data_ptr<int64_t>();
  params.segments = segments.const_data_ptr<int64_t>();
  params.rows = z.size(0);
  params.each = params.rows == 0 ? 0 : z.numel() / params.rows;
  params.std = static_cast<float>(std);
  params.seed = static_cast<uint64_t>(seed);
  params.element = cuda::element_of(z);
  C10_CUDA_CHECK(cuda::launch(params, c10::cuda::getCurrentCUDAStream()));
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, CUDA, m) {
  m.impl("add_state_noise_", &add_state_noise_cuda_);
}

}  // namespace hrm::ops
