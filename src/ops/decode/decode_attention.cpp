#include "hrm/ops/decode_attention.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include "ops/common/nothing_made.h"
#include "ops/common/op.h"
#include "ops/decode/decode_attention_impl.h"

namespace hrm::ops {

void check_decode_attention(const at::Tensor& qkv, const at::Tensor& keys, const at::Tensor& values,
                            const at::Tensor& lengths, const at::Tensor& cos, const at::Tensor& sin,
                            const std::optional<at::Tensor>& q_weight, const std::optional<at::Tensor>& k_weight,
                            double eps, int64_t window) {
  TORCH_CHECK(qkv.dim() == 2 && keys.dim() == 4 && values.sizes() == keys.sizes() && keys.size(0) == qkv.size(0) &&
                  keys.size(1) > 0 && keys.size(3) > 0 && keys.size(3) % 2 == 0,
              "hrm::decode_attention_: qkv must have the shape (B, (Hq + 2 Hkv) hd), keys and values (B, Hkv, S, hd) "
              "with an even hd, got ",
              qkv.sizes(), ", ", keys.sizes(), " and ", values.sizes());
  const int64_t hd = keys.size(3), kv_heads = keys.size(1), heads = qkv.size(1) / hd - 2 * kv_heads;
  TORCH_CHECK(qkv.size(1) % hd == 0 && heads > 0 && heads % kv_heads == 0, "hrm::decode_attention_: ", qkv.sizes(),
              " does not hold a multiple of ", kv_heads, " heads of queries of ", hd,
              " elements beside those of the keys and values ", keys.sizes());
  TORCH_CHECK(at::isFloatingType(qkv.scalar_type()) && keys.scalar_type() == qkv.scalar_type() &&
                  values.scalar_type() == qkv.scalar_type(),
              "hrm::decode_attention_: qkv, keys and values must have one floating-point dtype, got ",
              qkv.scalar_type(), ", ", keys.scalar_type(), " and ", values.scalar_type());
  TORCH_CHECK(lengths.dim() == 1 && lengths.size(0) == qkv.size(0) && lengths.scalar_type() == at::kLong,
              "hrm::decode_attention_: lengths must be (B) int64, got ", lengths.sizes(), " ", lengths.scalar_type());
  TORCH_CHECK(cos.dim() == 2 && cos.size(1) == hd / 2 && sin.sizes() == cos.sizes() &&
                  cos.scalar_type() == at::kFloat && sin.scalar_type() == at::kFloat && cos.is_contiguous() &&
                  sin.is_contiguous() && cos.size(0) >= keys.size(2),
              "hrm::decode_attention_: cos and sin must be (positions, hd / 2) float32, contiguous, for the positions "
              "of the cache at least, got ",
              cos.sizes(), " and ", sin.sizes(), " for ", keys.sizes());
  TORCH_CHECK(q_weight.has_value() == k_weight.has_value(),
              "hrm::decode_attention_: q_weight and k_weight must both be there, or none");
  for (const auto& weight : {q_weight, k_weight}) {
    TORCH_CHECK(!weight || (weight->dim() == 1 && weight->size(0) == hd && weight->scalar_type() == at::kFloat),
                "hrm::decode_attention_: q_weight and k_weight must be (", hd, ") float32, got ", weight->sizes());
  }
  TORCH_CHECK(eps >= 0 && window >= 0, "hrm::decode_attention_: eps ", eps, " and window ", window);
}

namespace {

using TwoTensors = std::tuple<at::Tensor, at::Tensor>;

TwoTensors by_op(const at::Tensor& qkv, const at::Tensor& keys, const at::Tensor& values, const at::Tensor& lengths,
                 const DecodeAttentionOptions& o, bool pairs) {
  static const Op<TwoTensors(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                             const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                             const std::optional<at::Tensor>&, double, int64_t, bool, bool)>
      op("hrm::decode_attention_");
  return op(qkv, keys, values, lengths, o.cos, o.sin, o.q_weight, o.k_weight, o.eps, o.window, o.steady, pairs);
}

TwoTensors decode_attention_cpu(const at::Tensor& qkv, const at::Tensor& keys, const at::Tensor& values,
                                const at::Tensor& lengths, const at::Tensor& cos, const at::Tensor& sin,
                                const std::optional<at::Tensor>& q_weight, const std::optional<at::Tensor>& k_weight,
                                double eps, int64_t window, bool /*steady*/, bool /*pairs*/) {
  check_decode_attention(qkv, keys, values, lengths, cos, sin, q_weight, k_weight, eps, window);
  return {reference::decode_attention_(qkv, keys, values, lengths, cos, sin, q_weight, k_weight, eps, window),
          nothing_made()};
}

}  // namespace

at::Tensor decode_attention_(const at::Tensor& qkv, const at::Tensor& keys, const at::Tensor& values,
                             const at::Tensor& lengths, const DecodeAttentionOptions& options) {
  return std::get<0>(by_op(qkv, keys, values, lengths, options, /*pairs=*/false));
}

PairedRows decode_attention_paired_(const at::Tensor& qkv, const at::Tensor& keys, const at::Tensor& values,
                                    const at::Tensor& lengths, const DecodeAttentionOptions& options) {
  const auto [out, pairs] = by_op(qkv, keys, values, lengths, options, /*pairs=*/true);
  return {out, if_made(pairs)};
}

TORCH_LIBRARY_FRAGMENT(hrm, m) {
  m.def(
      "decode_attention_(Tensor qkv, Tensor(a!) keys, Tensor(b!) values, Tensor lengths, Tensor cos, Tensor sin, "
      "Tensor? q_weight, Tensor? k_weight, float eps, int window, bool steady=False, bool pairs=False) "
      "-> (Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(hrm, CPU, m) {
  m.impl("decode_attention_", &decode_attention_cpu);
}

TORCH_LIBRARY_IMPL(hrm, Autograd, m) {
  m.impl("decode_attention_", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace hrm::ops
