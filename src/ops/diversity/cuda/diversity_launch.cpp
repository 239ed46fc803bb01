#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "ops/cuda/launcher.h"
#include "ops/diversity/cuda/diversity.h"
#include "ops/diversity/diversity_impl.h"

namespace hrm::ops {
namespace {

DiversityResult semantic_diversity_cuda(const at::Tensor& embeddings, const std::optional<at::Tensor>& counts) {
  check_semantic_diversity(embeddings, counts);
  const c10::cuda::CUDAGuard guard(embeddings.device());
  if (!cuda::use_kernel(embeddings)) return plain_semantic_diversity(embeddings, counts);
  const at::Tensor x = embeddings.stride(2) == 1 ? embeddings : embeddings.contiguous();
  const at::Tensor numbers = counts ? counts->contiguous() : at::Tensor();
  const int64_t G = x.size(0), N = x.size(1);
  const at::TensorOptions floats = x.options().dtype(at::kFloat);
  if (G * N == 0) return {at::zeros({G}, floats), at::empty({G, N}, floats), at::empty({G, N}, floats)};
  cuda::DiversityParams params{};
  params.embeddings = x.const_data_ptr();
  params.group_pitch = x.stride(0);
  params.row_pitch = x.stride(1);
  params.groups = G;
  params.vectors = N;
  params.dim = x.size(2);
  params.element = cuda::element_of(x);
  params.counts = counts ? numbers.const_data_ptr() : nullptr;
  params.long_counts = counts && counts->scalar_type() == at::kLong;
  const cudaDeviceProp& device = *at::cuda::getCurrentDeviceProperties();
  const cuda::DiversityPlan plan =
      cuda::plan(params, device.multiProcessorCount, static_cast<int64_t>(device.sharedMemPerBlockOptin));
  if (plan.blocks == 0) return reference::semantic_diversity_closed(embeddings, counts);
  const at::Tensor totals = at::empty({G}, floats), rows = at::empty({G, N}, floats), loo = at::empty({G, N}, floats);
  at::Tensor scratch;
  if (const int64_t size = cuda::scratch_size(params, plan); size > 0) {
    scratch = at::empty({size}, floats.dtype(at::kDouble));
  }
  params.totals = totals.mutable_data_ptr<float>();
  params.rows = rows.mutable_data_ptr<float>();
  params.loo = loo.mutable_data_ptr<float>();
  C10_CUDA_CHECK(cuda::launch(params, plan, scratch.defined() ? scratch.mutable_data_ptr<double>() : nullptr,
                              c10::cuda::getCurrentCUDAStream()));
  return {totals, rows, loo};
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, CUDA, m) {
  m.impl("semantic_diversity", &semantic_diversity_cuda);
}

}  // namespace hrm::ops
