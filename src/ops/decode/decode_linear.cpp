#include "hrm/ops/decode_linear.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include "hrm/build_config.h"
#include "hrm/ops/linear.h"
#include "hrm/ops/linear_add.h"
#include "hrm/ops/linear_swiglu.h"
#include "hrm/ops/swiglu.h"
#include "hrm/ops/weighted_rms_norm.h"
#include "ops/adapters/lora_impl.h"
#include "ops/common/nothing_made.h"
#include "ops/common/op.h"
#include "ops/common/sizes.h"
#include "ops/linear/linear_impl.h"
#include "ops/linear/linear_swiglu_impl.h"
#include "ops/norm/weighted_rms_norm_impl.h"
#include "ops/quantized/weight8_impl.h"

#if HRM_WITH_CUDA
#include "ops/linear/cuda/skinny_gemm_product.h"
#endif

namespace hrm::ops {
namespace {

using TwoTensors = std::tuple<at::Tensor, at::Tensor>;
using DecodeLinearOp = TwoTensors(const at::Tensor&, const at::Tensor&, const OptionalTensor&, double,
                                  const OptionalTensor&, bool, const OptionalTensor&, const OptionalTensor&,
                                  const OptionalTensor&, const OptionalTensor&, const OptionalTensor&,
                                  const OptionalTensor&, const OptionalTensor&, at::IntArrayRef, double);
using FourTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
using DecodeLinearAheadOp = FourTensors(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                        const OptionalTensor&, const OptionalTensor&, const OptionalTensor&,
                                        const OptionalTensor&, const OptionalTensor&, at::IntArrayRef, double);

DecodeAdapter adapter_or_none(const std::optional<DecodeAdapter>& adapter) {
  return adapter ? *adapter : DecodeAdapter{};
}

}  // namespace

PairedRows decode_linear_paired(const PairedRows& x, const DecodeWeight& weight, const DecodeLinearOptions& o) {
  static const Op<DecodeLinearOp> op("hrm::decode_linear");
  const DecodeAdapter a = adapter_or_none(o.adapter);
  TORCH_CHECK(!o.norm || !x.pairs.defined(), "hrm::decode_linear: with a norm, pairs are those of `ahead`, not of x");
  const auto [y, pairs] = op(x.rows, weight.values, o.norm, o.eps, o.residual, o.gated, optional_tensor(o.ahead.scaled),
                             optional_tensor(o.ahead.squares), optional_tensor(o.norm ? o.ahead.pairs : x.pairs),
                             optional_tensor(weight.scales), optional_tensor(weight.workspace), optional_tensor(a.u),
                             optional_tensor(a.B), flat_slices(a.slices), a.scale);
  return {y, if_made(pairs)};
}

at::Tensor decode_linear(const PairedRows& x, const DecodeWeight& weight, const DecodeLinearOptions& options) {
  return decode_linear_paired(x, weight, options).rows;
}

DecodedAhead decode_linear_ahead(const PairedRows& x, const DecodeWeight& weight, const at::Tensor& residual,
                                 const at::Tensor& next_norm, const std::optional<DecodeAdapter>& adapter) {
  static const Op<DecodeLinearAheadOp> op("hrm::decode_linear_ahead");
  const DecodeAdapter a = adapter_or_none(adapter);
  const auto [y, scaled, squares, pairs] =
      op(x.rows, weight.values, residual, next_norm, optional_tensor(x.pairs), optional_tensor(weight.scales),
         optional_tensor(weight.workspace), optional_tensor(a.u), optional_tensor(a.B), flat_slices(a.slices), a.scale);
  return {y, {if_made(scaled), if_made(squares), if_made(pairs)}};
}

namespace {

// A weight and an adapter from the dispatcher's arguments.
DecodeWeight weight_of(const at::Tensor& values, const OptionalTensor& scales, const OptionalTensor& workspace) {
  DecodeWeight weight(values);
  if (scales) weight.scales = *scales;
  if (workspace) weight.workspace = *workspace;
  return weight;
}

std::optional<DecodeAdapter> adapter_of(const OptionalTensor& u, const OptionalTensor& B, at::IntArrayRef slices,
                                        double scale) {
  TORCH_CHECK(u.has_value() == B.has_value(), "hrm::decode_linear: an adapter needs both u and B");
  if (!u) return std::nullopt;
  return DecodeAdapter{.u = *u, .B = *B, .slices = lora_slices(slices), .scale = scale};
}

// A product and what is done with it.
struct Product {
  DecodeWeight weight;
  OptionalTensor residual = {};
  std::optional<DecodeAdapter> adapter = {};
  OptionalTensor pairs = {};  // of x
  bool gated = false;

  Weight8 weight8() const { return {.values = weight.values, .scales = weight.scales}; }
  OptionalTensor workspace() const { return optional_tensor(weight.workspace); }
  int64_t width() const { return weight.values.size(0) / (gated ? 2 : 1); }
};

void check_adapter(const at::Tensor& x, const Product& p) {
  if (!p.adapter) return;
  const DecodeAdapter& a = *p.adapter;
  TORCH_CHECK(a.u.dim() >= 1 && a.B.dim() == 2 && a.u.sizes().vec() == with_last_size(x, a.u.size(-1)) &&
                  a.u.size(-1) == static_cast<int64_t>(a.slices.size()) * a.B.size(1) &&
                  a.u.scalar_type() == x.scalar_type() && a.B.scalar_type() == x.scalar_type() &&
                  a.u.device() == x.device() && a.B.device() == x.device(),
              "hrm::decode_linear: an adapter's u must be (..., slices * rank) and B (rows, rank), of x's dtype and "
              "device, got ",
              a.u.sizes(), " and ", a.B.sizes(), " with ", a.slices.size(), " slices for x of ", x.sizes());
  for (const LoraSlice& s : a.slices) {
    TORCH_CHECK(s.out >= 0 && s.first >= 0 && s.rows >= 1 && s.out + s.rows <= p.weight.values.size(0) &&
                    s.first + s.rows <= a.B.size(0),
                "hrm::decode_linear: an adapter's slice has columns ", s.out, " to ", s.out + s.rows,
                " of a product with a weight of ", p.weight.values.sizes(), ", and rows ", s.first, " to ",
                s.first + s.rows, " of B, ", a.B.sizes());
  }
}

void check_decode_linear(const at::Tensor& x, const Product& p, const OptionalTensor& norm, double eps) {
  const at::Tensor& values = p.weight.values;
  TORCH_CHECK(!p.gated || !p.residual, "hrm::decode_linear: no residual is added to what is gated, got ", x.sizes(),
              " and ", values.sizes());
  if (norm) check_weighted_rms_norm(x, *norm, eps);
  if (p.weight.scales.defined()) {
    check_linear_weight8(x, p.weight8(), std::nullopt, p.workspace());
    TORCH_CHECK(!p.gated || values.size(0) % 2 == 0,
                "hrm::decode_linear: a gated weight must have an even number of rows, got ", values.sizes());
  } else if (p.gated) {
    check_linear_swiglu(x, values);
  } else {
    check_linear(x, values, values, {}, {}, {});
  }
  TORCH_CHECK(!p.residual || (p.residual->sizes().vec() == with_last_size(x, values.size(0)) &&
                              p.residual->scalar_type() == x.scalar_type() && p.residual->device() == x.device()),
              "hrm::decode_linear: residual must be (..., out) of x's dtype and device where x is (..., in), got ",
              p.residual->sizes(), " ", p.residual->scalar_type(), " for ", x.sizes(), " and ", values.sizes());
  check_adapter(x, p);
  TORCH_CHECK(!p.pairs || (p.pairs->dim() == 1 && p.pairs->scalar_type() == at::kByte && p.pairs->is_contiguous() &&
                           p.pairs->device() == x.device()),
              "hrm::decode_linear: pairs must be uint8 in one dimension, as a kernel made them, got ", p.pairs->sizes(),
              " ", p.pairs->scalar_type());
}

void check_ahead(const at::Tensor& x, const OptionalTensor& norm, const OptionalTensor& scaled,
                 const OptionalTensor& squares) {
  TORCH_CHECK(scaled.has_value() == squares.has_value() && (!scaled || norm),
              "hrm::decode_linear: scaled and squares come together, and with the norm that they are for");
  TORCH_CHECK(!scaled || (scaled->sizes() == x.sizes() && scaled->scalar_type() == x.scalar_type() &&
                          scaled->device() == x.device() && squares->scalar_type() == at::kFloat &&
                          squares->device() == x.device() && squares->is_contiguous() &&
                          squares->numel() == x.numel() / x.size(-1) * ((x.size(-1) + 63) / 64)),
              "hrm::decode_linear: scaled must be as x, ", x.sizes(),
              ", and squares (rows, ceil(D / 64)) float32, got ", scaled->sizes(), " ", scaled->scalar_type(), " and ",
              squares->sizes(), " ", squares->scalar_type());
}

void check_linear_next_norm(const at::Tensor& weight, const at::Tensor& next_norm) {
  TORCH_CHECK(next_norm.dim() == 1 && next_norm.size(0) == weight.size(0) && next_norm.device() == weight.device(),
              "hrm::decode_linear_ahead: next_norm must be (F) where weight is (F, D), got ", next_norm.sizes(),
              " for ", weight.sizes());
}

// Where no kernel makes pairs, or anything ahead.
TwoTensors unpaired(const at::Tensor& y) {
  return {y, nothing_made()};
}
FourTensors alone(const at::Tensor& y) {
  const at::Tensor none = at::empty({0}, y.options());
  return {y, none, none, nothing_made()};
}

// x @ weight^T (+ adapter) (+ residual), without the gate.
at::Tensor plain_product(const at::Tensor& x, const Product& p) {
  const at::Tensor& w = p.weight.values;
  at::Tensor y = p.weight.scales.defined() ? linear_weight8(x, p.weight8(), p.residual, p.workspace())
                 : p.residual              ? linear_add(x, w, w, *p.residual)
                                           : linear(x, w, w);
  if (p.adapter && y.numel() > 0) {
    const DecodeAdapter& a = *p.adapter;
    const at::Tensor u = a.scale == 1 ? a.u : a.u * a.scale;
    lora_add_(y.view({-1, y.size(-1)}), u.reshape({-1, u.size(-1)}), a.B, a.slices);
  }
  return y;
}

// By the ops that it is made of.
at::Tensor composed_of(const at::Tensor& x, const Product& p) {
  const at::NoGradGuard no_grad;
  if (!p.gated) return plain_product(x, p);
  const bool plain = !p.weight.scales.defined() && !p.adapter;
  return plain ? linear_swiglu(x, p.weight.values) : swiglu(plain_product(x, p));
}

TwoTensors decode_linear_cpu(const at::Tensor& x, const at::Tensor& weight, const OptionalTensor& norm, double eps,
                             const OptionalTensor& residual, bool gated, const OptionalTensor& scaled,
                             const OptionalTensor& squares, const OptionalTensor& pairs, const OptionalTensor& scales,
                             const OptionalTensor& workspace, const OptionalTensor& u, const OptionalTensor& B,
                             at::IntArrayRef slices, double adapter_scale) {
  const Product p{weight_of(weight, scales, workspace), residual, adapter_of(u, B, slices, adapter_scale), pairs,
                  gated};
  check_decode_linear(x, p, norm, eps);
  check_ahead(x, norm, scaled, squares);
  return unpaired(composed_of(norm ? weighted_rms_norm(x, *norm, eps) : x, p));
}

FourTensors decode_linear_ahead_cpu(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& residual,
                                    const at::Tensor& next_norm, const OptionalTensor& pairs,
                                    const OptionalTensor& scales, const OptionalTensor& workspace,
                                    const OptionalTensor& u, const OptionalTensor& B, at::IntArrayRef slices,
                                    double adapter_scale) {
  const Product p{weight_of(weight, scales, workspace), residual, adapter_of(u, B, slices, adapter_scale), pairs};
  check_decode_linear(x, p, {}, 0);
  check_linear_next_norm(weight, next_norm);
  return alone(composed_of(x, p));
}

#if HRM_WITH_CUDA
cuda::SkinnyGemmOptions skinny_options(const Product& p) {
  cuda::SkinnyGemmOptions options{.gated = p.gated, .steady = true};
  if (p.residual) options.residual = *p.residual;
  options.scales = p.weight.scales;
  options.adapter = p.adapter;
  if (p.pairs) options.pairs = *p.pairs;
  return options;
}

TwoTensors decode_linear_cuda(const at::Tensor& x, const at::Tensor& weight, const OptionalTensor& norm, double eps,
                              const OptionalTensor& residual, bool gated, const OptionalTensor& scaled,
                              const OptionalTensor& squares, const OptionalTensor& pairs, const OptionalTensor& scales,
                              const OptionalTensor& workspace, const OptionalTensor& u, const OptionalTensor& B,
                              at::IntArrayRef slices, double adapter_scale) {
  const Product p{weight_of(weight, scales, workspace), residual, adapter_of(u, B, slices, adapter_scale), pairs,
                  gated};
  check_decode_linear(x, p, norm, eps);
  check_ahead(x, norm, scaled, squares);
  AheadOfNorm made;
  cuda::SkinnyGemmOptions options = skinny_options(p);
  options.made = &made;
  const auto paired = [&](const at::Tensor& y) {
    return made.pairs.defined() ? TwoTensors(y, made.pairs) : unpaired(y);
  };
  at::Tensor rows = x;
  if (norm) {
    options.eps = eps;
    options.norm = *norm;
    if (scaled) options.ahead = {*scaled, *squares};
    if (const at::Tensor few = cuda::skinny_gemm(x, weight, options); few.defined()) return paired(few);
    rows = weighted_rms_norm(x, *norm, eps);
    options.norm = options.pairs = at::Tensor();
    options.ahead = {};
    options.normed = true;
  }
  if (const at::Tensor few = cuda::skinny_gemm(rows, weight, options); few.defined()) return paired(few);
  return unpaired(composed_of(rows, p));
}

FourTensors decode_linear_ahead_cuda(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& residual,
                                     const at::Tensor& next_norm, const OptionalTensor& pairs,
                                     const OptionalTensor& scales, const OptionalTensor& workspace,
                                     const OptionalTensor& u, const OptionalTensor& B, at::IntArrayRef slices,
                                     double adapter_scale) {
  const Product p{weight_of(weight, scales, workspace), residual, adapter_of(u, B, slices, adapter_scale), pairs};
  check_decode_linear(x, p, {}, 0);
  check_linear_next_norm(weight, next_norm);
  AheadOfNorm made;
  cuda::SkinnyGemmOptions options = skinny_options(p);
  options.next_norm = next_norm;
  options.made = &made;
  const at::Tensor few = cuda::skinny_gemm(x, weight, options);
  if (!few.defined()) return alone(composed_of(x, p));
  if (!made.squares.defined()) return alone(few);
  return {few, made.scaled, made.squares, made.pairs.defined() ? made.pairs : nothing_made()};
}
#endif

}  // namespace

TORCH_LIBRARY_FRAGMENT(hrm, m) {
  m.def(
      "decode_linear(Tensor x, Tensor weight, Tensor? norm, float eps, Tensor? residual, bool gated, Tensor? scaled, "
      "Tensor? squares, Tensor? pairs, Tensor? scales, Tensor(a!)? workspace, Tensor? u, Tensor? B, int[] slices, "
      "float adapter_scale) -> (Tensor, Tensor)");
  m.def(
      "decode_linear_ahead(Tensor x, Tensor weight, Tensor residual, Tensor next_norm, Tensor? pairs, Tensor? scales, "
      "Tensor(a!)? workspace, Tensor? u, Tensor? B, int[] slices, float adapter_scale) "
      "-> (Tensor, Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(hrm, CPU, m) {
  m.impl("decode_linear", &decode_linear_cpu);
  m.impl("decode_linear_ahead", &decode_linear_ahead_cpu);
}

#if HRM_WITH_CUDA
TORCH_LIBRARY_IMPL(hrm, CUDA, m) {
  m.impl("decode_linear", &decode_linear_cuda);
  m.impl("decode_linear_ahead", &decode_linear_ahead_cuda);
}
#endif

TORCH_LIBRARY_IMPL(hrm, Autograd, m) {
  m.impl("decode_linear", torch::autograd::autogradNotImplementedFallback());
  m.impl("decode_linear_ahead", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace hrm::ops
