#include "hrm/ops/decode_linear.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include "hrm/build_config.h"
#include "hrm/ops/linear.h"
#include "hrm/ops/linear_add.h"
#include "hrm/ops/linear_swiglu.h"
#include "hrm/ops/weighted_rms_norm.h"
#include "ops/common/op.h"
#include "ops/common/sizes.h"
#include "ops/linear/linear_impl.h"
#include "ops/linear/linear_swiglu_impl.h"
#include "ops/norm/weighted_rms_norm_impl.h"

#if HRM_WITH_CUDA
#include "ops/linear/cuda/skinny_gemm_product.h"
#endif

namespace hrm::ops {

at::Tensor decode_linear(const at::Tensor& x, const at::Tensor& weight, const DecodeLinearOptions& o) {
  static const Op<at::Tensor(const at::Tensor&, const at::Tensor&, const OptionalTensor&, double, const OptionalTensor&,
                             bool, const OptionalTensor&, const OptionalTensor&)>
      op("hrm::decode_linear");
  return op(x, weight, o.norm, o.eps, o.residual, o.gated, optional_tensor(o.ahead.scaled),
            optional_tensor(o.ahead.squares));
}

DecodedAhead decode_linear_ahead(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& residual,
                                 const at::Tensor& next_norm) {
  static const Op<std::tuple<at::Tensor, at::Tensor, at::Tensor>(const at::Tensor&, const at::Tensor&,
                                                                 const at::Tensor&, const at::Tensor&)>
      op("hrm::decode_linear_ahead");
  auto [y, scaled, squares] = op(x, weight, residual, next_norm);
  if (squares.numel() == 0) return {y, {}};
  return {y, {scaled, squares}};
}

namespace {

void check_decode_linear(const at::Tensor& x, const at::Tensor& weight, const OptionalTensor& norm, double eps,
                         const OptionalTensor& residual, bool gated) {
  TORCH_CHECK(!gated || !residual, "hrm::decode_linear: no residual is added to what is gated, got ", x.sizes(),
              " and ", weight.sizes());
  if (norm) check_weighted_rms_norm(x, *norm, eps);
  if (gated) {
    check_linear_swiglu(x, weight);
  } else {
    check_linear(x, weight, weight, {}, {}, {});
  }
  TORCH_CHECK(!residual || (residual->sizes().vec() == with_last_size(x, weight.size(0)) &&
                            residual->scalar_type() == x.scalar_type() && residual->device() == x.device()),
              "hrm::decode_linear: residual must be (..., out) of x's dtype and device where x is (..., in), got ",
              residual->sizes(), " ", residual->scalar_type(), " for ", x.sizes(), " and ", weight.sizes());
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

void check_next_norm(const at::Tensor& weight, const at::Tensor& next_norm) {
  TORCH_CHECK(next_norm.dim() == 1 && next_norm.size(0) == weight.size(0) && next_norm.device() == weight.device(),
              "hrm::decode_linear_ahead: next_norm must be (F) where weight is (F, D), got ", next_norm.sizes(),
              " for ", weight.sizes());
}

// Where no kernel makes anything ahead.
std::tuple<at::Tensor, at::Tensor, at::Tensor> alone(at::Tensor y) {
  const at::Tensor none = at::empty({0}, y.options());
  return {std::move(y), none, none};
}

// By the ops that it is made of.
at::Tensor composed_of(const at::Tensor& x, const at::Tensor& weight, const OptionalTensor& residual, bool gated) {
  const at::NoGradGuard no_grad;
  if (gated) return linear_swiglu(x, weight);
  return residual ? linear_add(x, weight, weight, *residual) : linear(x, weight, weight);
}

at::Tensor decode_linear_cpu(const at::Tensor& x, const at::Tensor& weight, const OptionalTensor& norm, double eps,
                             const OptionalTensor& residual, bool gated, const OptionalTensor& scaled,
                             const OptionalTensor& squares) {
  check_decode_linear(x, weight, norm, eps, residual, gated);
  check_ahead(x, norm, scaled, squares);
  return composed_of(norm ? weighted_rms_norm(x, *norm, eps) : x, weight, residual, gated);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> decode_linear_ahead_cpu(const at::Tensor& x, const at::Tensor& weight,
                                                                       const at::Tensor& residual,
                                                                       const at::Tensor& next_norm) {
  check_decode_linear(x, weight, {}, 0, residual, false);
  check_next_norm(weight, next_norm);
  return alone(composed_of(x, weight, residual, false));
}

#if HRM_WITH_CUDA
at::Tensor decode_linear_cuda(const at::Tensor& x, const at::Tensor& weight, const OptionalTensor& norm, double eps,
                              const OptionalTensor& residual, bool gated, const OptionalTensor& scaled,
                              const OptionalTensor& squares) {
  check_decode_linear(x, weight, norm, eps, residual, gated);
  check_ahead(x, norm, scaled, squares);
  cuda::SkinnyGemmOptions options{.eps = eps, .gated = gated, .steady = true};
  if (residual) options.residual = *residual;
  at::Tensor rows = x;
  if (norm) {
    options.norm = *norm;
    if (scaled) options.ahead = {*scaled, *squares};
    if (at::Tensor few = cuda::skinny_gemm(x, weight, options); few.defined()) return few;
    rows = weighted_rms_norm(x, *norm, eps);
    options.norm = at::Tensor();
    options.ahead = {};
    options.normed = true;
  }
  if (at::Tensor few = cuda::skinny_gemm(rows, weight, options); few.defined()) return few;
  return composed_of(rows, weight, residual, gated);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> decode_linear_ahead_cuda(const at::Tensor& x, const at::Tensor& weight,
                                                                        const at::Tensor& residual,
                                                                        const at::Tensor& next_norm) {
  check_decode_linear(x, weight, {}, 0, residual, false);
  check_next_norm(weight, next_norm);
  AheadOfNorm ahead;
  const cuda::SkinnyGemmOptions options{.residual = residual, .next_norm = next_norm, .made = &ahead, .steady = true};
  at::Tensor few = cuda::skinny_gemm(x, weight, options);
  if (!few.defined()) return alone(composed_of(x, weight, residual, false));
  if (!ahead.squares.defined()) return alone(std::move(few));
  return {few, ahead.scaled, ahead.squares};
}
#endif

}  // namespace

TORCH_LIBRARY_FRAGMENT(hrm, m) {
  m.def(
      "decode_linear(Tensor x, Tensor weight, Tensor? norm, float eps, Tensor? residual, bool gated, Tensor? scaled, "
      "Tensor? squares) -> Tensor");
  m.def("decode_linear_ahead(Tensor x, Tensor weight, Tensor residual, Tensor next_norm) -> (Tensor, Tensor, Tensor)");
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
