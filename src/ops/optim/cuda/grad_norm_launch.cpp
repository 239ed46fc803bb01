#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <limits>

#include "hrm/ops/backend.h"
#include "ops/optim/cuda/grad_norm.h"
#include "ops/optim/grad_norm_impl.h"

namespace hrm::ops {
namespace {

// The sums of the kernel's blocks, which live until it is queued.
at::Tensor place_sums(const at::Tensor& flat, cuda::GradNormParams& params) {
  params.flat = flat.const_data_ptr<float>();
  params.size = flat.numel();
  params.num_partial = (params.size + cuda::kNormElementsPerBlock - 1) / cuda::kNormElementsPerBlock;
  TORCH_CHECK(params.num_partial <= std::numeric_limits<int32_t>::max(), "hrm::grad_norm: a vector of ", flat.sizes(),
              " is larger than the kernel's 32-bit block index allows");
  at::Tensor partial = at::empty({params.num_partial}, flat.options().dtype(at::kDouble));
  params.partial = partial.mutable_data_ptr<double>();
  return partial;
}

at::Tensor float64_norm_cuda(const at::Tensor& flat) {
  check_float64_norm(flat);
  const c10::cuda::CUDAGuard guard(flat.device());
  if (backend() == Backend::reference) return reference::float64_norm(flat);
  cuda::GradNormParams params{};
  const at::Tensor partial = place_sums(flat, params);
  at::Tensor norm = at::empty({}, partial.options());
  params.type = cuda::NormType::two;
  params.exact = norm.mutable_data_ptr<double>();
  C10_CUDA_CHECK(cuda::launch(params, c10::cuda::getCurrentCUDAStream()));
  return norm;
}

GradNormResult grad_norm_cuda(const at::Tensor& flat, double max_norm, double norm_type,
                              const std::optional<at::Tensor>& loss_scale, const std::optional<at::Tensor>& skip,
                              const std::optional<at::Tensor>& report) {
  check_grad_norm(flat, max_norm, norm_type, loss_scale, skip, report);
  const c10::cuda::CUDAGuard guard(flat.device());
  if (backend() == Backend::reference) return reference::grad_norm(flat, max_norm, norm_type, loss_scale, skip, report);

  cuda::GradNormParams params{};
  const at::Tensor partial = place_sums(flat, params);
  const at::Tensor norm = at::empty({}, flat.options());
  const at::Tensor coef = at::empty({}, flat.options());
  const at::Tensor nonfinite = at::empty({}, flat.options());
  params.max_norm = static_cast<float>(max_norm);
  params.type = norm_type == 1 ? cuda::NormType::one : norm_type == 2 ? cuda::NormType::two : cuda::NormType::infinity;
  params.norm = norm.mutable_data_ptr<float>();
  params.coef = coef.mutable_data_ptr<float>();
  params.nonfinite = nonfinite.mutable_data_ptr<float>();
  params.loss_scale = loss_scale ? loss_scale->const_data_ptr<float>() : nullptr;
  params.skip = skip ? skip->mutable_data_ptr<float>() : nullptr;
  params.report = report ? report->mutable_data_ptr<double>() : nullptr;
  C10_CUDA_CHECK(cuda::launch(params, c10::cuda::getCurrentCUDAStream()));
  return {norm, coef, nonfinite};
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, CUDA, m) {
  m.impl("grad_norm", &grad_norm_cuda);
  m.impl("float64_norm", &float64_norm_cuda);
}

}  // namespace hrm::ops
