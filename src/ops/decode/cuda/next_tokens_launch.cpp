#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "ops/cuda/launcher.h"
#include "ops/decode/cuda/next_tokens.h"
#include "ops/decode/next_tokens_impl.h"

namespace hrm::ops {
namespace {

static_assert(kMostStopIds == cuda::kMostStops);

// What both ops share; `rows` keeps the memory alive.
cuda::NextTokens params_of(const at::Tensor& rows, const SamplingOptions& o) {
  cuda::NextTokens params{};
  params.logits = rows.const_data_ptr();
  params.rows = rows.size(0);
  params.vocabulary = rows.size(1);
  params.pitch = rows.stride(0);
  params.element = cuda::element_of(rows);
  params.greatest = o.temperature == 0;
  // As ATen divides by a number.
  params.inverse = params.greatest ? 1.0f : 1.0f / static_cast<float>(o.temperature);
  params.top_k = o.top_k < rows.size(1) ? o.top_k : 0;
  params.top_p = o.top_p;
  params.min_p = static_cast<float>(o.min_p);
  return params;
}

at::Tensor side_by_side(const at::Tensor& logits) {
  return logits.stride(1) == 1 ? logits : logits.contiguous();
}

at::Tensor sample_tokens_cuda(const at::Tensor& logits, const std::optional<at::Tensor>& draws, double temperature,
                              int64_t top_k, double top_p, double min_p) {
  const SamplingOptions options{temperature, top_k, top_p, min_p};
  const at::Tensor given = draws.value_or(at::Tensor());
  check_sample_tokens("hrm::sample_tokens", logits, options);
  check_draws(logits, options, given);
  const c10::cuda::CUDAGuard guard(logits.device());
  if (!cuda::use_kernel(logits)) return reference::sample_tokens(logits, options, given);
  const at::Tensor rows = side_by_side(logits), values = given.defined() ? given.contiguous() : given;
  at::Tensor tokens = at::empty({logits.size(0)}, logits.options().dtype(at::kLong));
  if (tokens.numel() == 0) return tokens;
  cuda::NextTokens params = params_of(rows, options);
  params.draws = values.defined() ? values.const_data_ptr<double>() : nullptr;
  params.row_draws = 1;
  params.tokens = tokens.mutable_data_ptr<int64_t>();
  C10_CUDA_CHECK(cuda::launch(params, c10::cuda::getCurrentCUDAStream()));
  return tokens;
}

void next_tokens_cuda(const at::Tensor& logits, const at::Tensor& draws, const at::Tensor& limits,
                      const at::Tensor& stop_ids, const at::Tensor& ids, const at::Tensor& count,
                      const at::Tensor& active, const at::Tensor& chosen, const std::optional<at::Tensor>& log_p,
                      double temperature, int64_t top_k, double top_p, double min_p) {
  const SamplingOptions options{temperature, top_k, top_p, min_p};
  const WrittenRows written{ids, count, limits, active, draws, chosen, stop_ids, log_p.value_or(at::Tensor())};
  check_next_tokens(logits, options, written);
  const c10::cuda::CUDAGuard guard(logits.device());
  if (!cuda::use_kernel(logits)) return reference::next_tokens_(logits, options, written);
  if (logits.size(0) == 0) return;
  const at::Tensor rows = side_by_side(logits);
  cuda::NextTokens params = params_of(rows, options);
  params.draws = draws.const_data_ptr<double>();
  params.row_draws = draws.size(1);
  params.limits = limits.const_data_ptr<int64_t>();
  params.stop_ids = stop_ids.const_data_ptr<int64_t>();
  params.stops = stop_ids.size(0);
  params.ids = ids.mutable_data_ptr<int64_t>();
  params.count = count.mutable_data_ptr<int64_t>();
  params.active = active.mutable_data_ptr<bool>();
  params.chosen = chosen.mutable_data_ptr<int64_t>();
  params.log_p = log_p ? log_p->mutable_data_ptr<float>() : nullptr;
  C10_CUDA_CHECK(cuda::launch(params, c10::cuda::getCurrentCUDAStream()));
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, CUDA, m) {
  m.impl("sample_tokens", &sample_tokens_cuda);
  m.impl("next_tokens_", &next_tokens_cuda);
}

}  // namespace hrm::ops
