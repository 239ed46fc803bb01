#include "hrm/ops/next_tokens.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include "ops/common/op.h"
#include "ops/common/optional_tensor.h"
#include "ops/decode/next_tokens_impl.h"

namespace hrm::ops {

void check_sample_tokens(const char* op, const at::Tensor& logits, const SamplingOptions& o) {
  TORCH_CHECK(logits.dim() == 2 && logits.size(1) > 0 && at::isFloatingType(logits.scalar_type()), op,
              ": logits must be (B, V) of a floating-point dtype with V above 0, got ", logits.sizes(), " ",
              logits.scalar_type());
  TORCH_CHECK(o.temperature >= 0 && o.top_k >= 0 && o.top_p >= 0 && o.top_p <= 1 && o.min_p >= 0 && o.min_p <= 1, op,
              ": temperature ", o.temperature, ", top_k ", o.top_k, ", top_p ", o.top_p, ", min_p ", o.min_p);
}

void check_draws(const at::Tensor& logits, const SamplingOptions& o, const at::Tensor& draws) {
  TORCH_CHECK(o.temperature == 0 || (draws.defined() && draws.dim() == 1 && draws.size(0) == logits.size(0) &&
                                     draws.scalar_type() == at::kDouble && draws.device() == logits.device()),
              "hrm::sample_tokens: draws must be (B) float64 where the logits are, got ",
              draws.defined() ? draws.sizes() : at::IntArrayRef{}, " for ", logits.sizes());
}

void check_next_tokens(const at::Tensor& logits, const SamplingOptions& o, const WrittenRows& rows) {
  check_sample_tokens("hrm::next_tokens_", logits, o);
  const int64_t B = logits.size(0);
  const auto fits = [&](const at::Tensor& t, at::ScalarType type) {
    return t.dim() == 1 && t.size(0) == B && t.scalar_type() == type && t.is_contiguous() &&
           t.device() == logits.device();
  };
  TORCH_CHECK(fits(rows.ids, at::kLong) && fits(rows.count, at::kLong) && fits(rows.limits, at::kLong) &&
                  fits(rows.active, at::kBool) && fits(rows.chosen, at::kLong),
              "hrm::next_tokens_: ids, count, limits and chosen must be (B) int64 and active (B) bool, contiguous, "
              "where the logits are, got ",
              rows.ids.sizes(), ", ", rows.count.sizes(), ", ", rows.limits.sizes(), ", ", rows.chosen.sizes(), " and ",
              rows.active.sizes(), " for ", logits.sizes());
  TORCH_CHECK(rows.draws.dim() == 2 && rows.draws.size(0) == B && rows.draws.size(1) > 0 &&
                  rows.draws.scalar_type() == at::kDouble && rows.draws.is_contiguous() &&
                  rows.draws.device() == logits.device(),
              "hrm::next_tokens_: draws must be (B, N) float64, contiguous, got ", rows.draws.sizes(), " for ",
              logits.sizes());
  TORCH_CHECK(
      rows.stop_ids.dim() == 1 && rows.stop_ids.size(0) <= kMostStopIds && rows.stop_ids.scalar_type() == at::kLong &&
          rows.stop_ids.is_contiguous() && rows.stop_ids.device() == logits.device(),
      "hrm::next_tokens_: stop_ids must be at most ", kMostStopIds, " int64, contiguous, got ", rows.stop_ids.sizes());
  TORCH_CHECK(!rows.log_p.defined() || fits(rows.log_p, at::kFloat),
              "hrm::next_tokens_: log_p must be (B) float32, contiguous, where the logits are, got ",
              rows.log_p.defined() ? rows.log_p.sizes() : at::IntArrayRef{}, " for ", logits.sizes());
}

at::Tensor filtered_probabilities(const at::Tensor& logits, const SamplingOptions& options) {
  check_sample_tokens("hrm::filtered_probabilities", logits, options);
  return reference::filtered_probabilities(logits, options);
}

at::Tensor sample_tokens(const at::Tensor& logits, const SamplingOptions& o, const at::Tensor& draws) {
  static const Op<at::Tensor(const at::Tensor&, const std::optional<at::Tensor>&, double, int64_t, double, double)> op(
      "hrm::sample_tokens");
  return op(logits, optional_tensor(draws), o.temperature, o.top_k, o.top_p, o.min_p);
}

void next_tokens_(const at::Tensor& logits, const SamplingOptions& o, const WrittenRows& rows) {
  static const Op<void(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                       const at::Tensor&, const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                       double, int64_t, double, double)>
      op("hrm::next_tokens_");
  op(logits, rows.draws, rows.limits, rows.stop_ids, rows.ids, rows.count, rows.active, rows.chosen,
     optional_tensor(rows.log_p), o.temperature, o.top_k, o.top_p, o.min_p);
}

namespace {

at::Tensor sample_tokens_cpu(const at::Tensor& logits, const std::optional<at::Tensor>& draws, double temperature,
                             int64_t top_k, double top_p, double min_p) {
  const SamplingOptions options{temperature, top_k, top_p, min_p};
  const at::Tensor values = draws.value_or(at::Tensor());
  check_sample_tokens("hrm::sample_tokens", logits, options);
  check_draws(logits, options, values);
  return reference::sample_tokens(logits, options, values);
}

void next_tokens_cpu(const at::Tensor& logits, const at::Tensor& draws, const at::Tensor& limits,
                     const at::Tensor& stop_ids, const at::Tensor& ids, const at::Tensor& count,
                     const at::Tensor& active, const at::Tensor& chosen, const std::optional<at::Tensor>& log_p,
                     double temperature, int64_t top_k, double top_p, double min_p) {
  const SamplingOptions options{temperature, top_k, top_p, min_p};
  const WrittenRows rows{ids, count, limits, active, draws, chosen, stop_ids, log_p.value_or(at::Tensor())};
  check_next_tokens(logits, options, rows);
  reference::next_tokens_(logits, options, rows);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(hrm, m) {
  m.def(
      "sample_tokens(Tensor logits, Tensor? draws, float temperature, int top_k, float top_p, float min_p) -> Tensor");
  m.def(
      "next_tokens_(Tensor logits, Tensor draws, Tensor limits, Tensor stop_ids, Tensor(a!) ids, Tensor(b!) count, "
      "Tensor(c!) active, Tensor(d!) chosen, Tensor(e!)? log_p, float temperature, int top_k, float top_p, float "
      "min_p) -> ()");
}

TORCH_LIBRARY_IMPL(hrm, CPU, m) {
  m.impl("sample_tokens", &sample_tokens_cpu);
  m.impl("next_tokens_", &next_tokens_cpu);
}

TORCH_LIBRARY_IMPL(hrm, Autograd, m) {
  m.impl("sample_tokens", torch::autograd::autogradNotImplementedFallback());
  m.impl("next_tokens_", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace hrm::ops
