#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <numbers>

#include "ops/act/cuda/start_state.h"
#include "ops/act/start_state_impl.h"
#include "ops/cuda/launcher.h"

namespace hrm::ops {
namespace {

void start_state_cuda_(const at::Tensor& z, const at::Tensor& fresh, const at::Tensor& draws, int64_t number,
                       double std, int64_t seed) {
  check_start_state(z, fresh, draws, std);
  const c10::cuda::CUDAGuard guard(z.device());
  if (!cuda::use_kernel(z)) return reference::start_state_(z, fresh, draws, number, std, seed);
  cuda::StartState params{};
  params.z = z.mutable_data_ptr();
  params.fresh = fresh.const_data_ptr<bool>();
  params.draws = draws.const_data_ptr<int64_t>();
  params.rows = z.size(0);
  params.each = params.rows == 0 ? 0 : z.numel() / params.rows;
  params.number = number;
  params.factor = static_cast<float>(std::numbers::sqrt2 * kTruncatedWidening * std);
  params.bound = static_cast<float>(2 * kTruncatedWidening * std);
  params.seed = static_cast<uint64_t>(seed);
  params.element = cuda::element_of(z);
  C10_CUDA_CHECK(cuda::launch(params, c10::cuda::getCurrentCUDAStream()));
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, CUDA, m) {
  m.impl("start_state_", &start_state_cuda_);
}

}  // namespace hrm::ops
