#include "hrm/nn/step_rows.h"

#include <utility>

#include "hrm/nn/lora.h"
#include "hrm/ops/swiglu.h"

namespace hrm::nn {
namespace {

// Whether ops::decode_linear knows everything that the layer does.
bool has_step_kernel(const Linear& linear) {
  const LoraAdapter* const adapter = linear.adapter();
  return !linear.bias().defined() && linear.format() != WeightFormat::nf4 &&
         (adapter == nullptr || !adapter->shared()->options.dora);
}

ops::DecodeWeight step_weight(const Linear& linear) {
  if (!is_quantized(linear.format())) return linear.compute_weight();
  const FrozenWeight weight = linear.frozen_weight();
  return ops::DecodeWeight(weight.weight8, weight.weight);
}

// The layer's active adapter for these rows, where `around` has their norm.
std::optional<ops::DecodeAdapter> step_adapter(const Linear& linear, const at::Tensor& x,
                                               const ops::DecodeLinearOptions& around = {}) {
  const LoraAdapter* const adapter = linear.adapter();
  if (adapter == nullptr) return std::nullopt;
  return ops::DecodeAdapter{.u = ops::decode_linear(x, adapter->A().compute_weight(), around),
                            .B = adapter->B().compute_weight(),
                            .slices = adapter->slices(),
                            .scale = lora_scale(adapter->shared()->options)};
}

}  // namespace

ops::PairedRows step_linear(const Linear& linear, const RmsNorm& norm, const StepRows& rows, bool gated) {
  if (!has_step_kernel(linear)) {
    const at::Tensor y = linear.forward(norm.forward(rows.x));
    return {gated ? ops::swiglu(y) : y};
  }
  at::Tensor x = rows.x;
  ops::DecodeLinearOptions options{.norm = norm.scale(), .eps = norm.eps(), .ahead = rows.ahead};
  if (linear.adapter() != nullptr && !rows.ahead.scaled.defined()) {
    x = norm.forward(x);  // once for both products
    options.norm = std::nullopt;
  }
  options.adapter = step_adapter(linear, x, options);
  options.gated = gated;
  return ops::decode_linear_paired(x, step_weight(linear), options);
}

StepRows step_product(const Linear& linear, const ops::PairedRows& x, const at::Tensor& residual, const RmsNorm* next) {
  if (!has_step_kernel(linear)) return {linear.forward_add(x.rows, residual)};
  const ops::DecodeWeight weight = step_weight(linear);
  const std::optional<ops::DecodeAdapter> adapter = step_adapter(linear, x.rows);
  if (next == nullptr) {
    return {ops::decode_linear(x, weight, {.residual = residual, .adapter = adapter})};
  }
  auto [y, ahead] = ops::decode_linear_ahead(x, weight, residual, next->scale(), adapter);
  return {std::move(y), std::move(ahead)};
}

at::Tensor step_sums_of(const Linear& linear, const ops::PairedRows& x) {
  if (!has_step_kernel(linear)) return linear.forward(x.rows);
  return ops::decode_linear(x, step_weight(linear), {.adapter = step_adapter(linear, x.rows)});
}

bool step_reads_pairs(const Linear& linear) {
  return has_step_kernel(linear) && linear.format() == WeightFormat::fp8 &&
         linear.weight().numel() >= ops::kDecodeTileElements;
}

}  // namespace hrm::nn
