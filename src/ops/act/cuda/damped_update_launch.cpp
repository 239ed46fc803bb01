#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "ops/act/cuda/damped_update.h"
#include "ops/act/damped_update_impl.h"
#include "ops/cuda/launcher.h"

namespace hrm::ops {
namespace {

at::Tensor damped_update_cuda(const at::Tensor& update, const at::Tensor& state, const std::optional<at::Tensor>& draws,
                              int64_t number, double damping, double std, int64_t seed) {
  check_damped_update(update, state, draws, damping, std);
  const c10::cuda::CUDAGuard guard(update.device());
  if (!cuda::use_kernel(update)) {
    return reference::damped_update(update, state, draws, number, damping, std, seed);
  }
  at::Tensor out = at::empty_like(update);
  cuda::DampedUpdate params{};
  params.update = update.const_data_ptr();
  params.state = state.const_data_ptr();
  params.out = out.mutable_data_ptr();
  params.draws = std > 0 ? draws->const_data_ptr<int64_t>() : nullptr;
  params.rows = update.size(0);
  params.each = params.rows == 0 ? 0 : update.numel() / params.rows;
  params.number = number;
  params.share = static_cast<float>(1 - damping);
  params.damping = static_cast<float>(damping);
  params.std = static_cast<float>(std);
  params.seed = static_cast<uint64_t>(seed);
  params.element = cuda::element_of(update);
  C10_CUDA_CHECK(cuda::launch(params, c10::cuda::getCurrentCUDAStream()));
  return out;
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, CUDA, m) {
  m.impl("damped_update", &damped_update_cuda);
}

}  // namespace hrm::ops
