#include "hrm/ops/decode_linear.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include "hrm/ops/linear.h"
#include "hrm/ops/linear_add.h"
#include "hrm/ops/linear_swiglu.h"
#include "hrm/ops/weighted_rms_norm.h"
#include "ops/linear_impl.h"
#include "ops/linear_swiglu_impl.h"
#include "ops/sizes.h"
#include "ops/weighted_rms_norm_impl.h"

#if HRM_WITH_CUDA
#include "ops/cuda/few_rows_product.h"
#endif

namespace hrm::ops {

at::Tensor decode_linear(const at::Tensor& x, const at::Tensor& weight, const DecodeLinearOptions& o) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("hrm::decode_linear", "")
                             .typed<at::Tensor(const at::Tensor&, const at::Tensor&, const OptionalTensor&, double,
                                               const OptionalTensor&, bool)>();
  return op.call(x, weight, o.norm, o.eps, o.residual, o.gated);
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

// By the ops that it is made of.
at::Tensor composed_of(const at::Tensor& x, const at::Tensor& weight, const OptionalTensor& residual, bool gated) {
  const at::NoGradGuard no_grad;
  if (gated) return linear_swiglu(x, weight);
  return residual ? linear_add(x, weight, weight, *residual) : linear(x, weight, weight);
}

at::Tensor decode_linear_cpu(const at::Tensor& x, const at::Tensor& weight, const OptionalTensor& norm, double eps,
                             const OptionalTensor& residual, bool gated) {
  check_decode_linear(x, weight, norm, eps, residual, gated);
  return composed_of(norm ? weighted_rms_norm(x, *norm, eps) : x, weight, residual, gated);
}

#if HRM_WITH_CUDA
at::Tensor decode_linear_cuda(const at::Tensor& x, const at::Tensor& weight, const OptionalTensor& norm, double eps,
                              const OptionalTensor& residual, bool gated) {
  check_decode_linear(x, weight, norm, eps, residual, gated);
  cuda::FewRowsProduct options{.eps = eps, .gated = gated, .steady = true};
  if (residual) options.residual = *residual;
  at::Tensor rows = x;
  if (norm) {
    options.norm = *norm;
    if (at::Tensor few = cuda::product_of_few_rows(x, weight, options); few.defined()) return few;
    rows = weighted_rms_norm(x, *norm, eps);
    options.norm = at::Tensor();
    options.normed = true;
  }
  if (at::Tensor few = cuda::product_of_few_rows(rows, weight, options); few.defined()) return few;
  return composed_of(rows, weight, residual, gated);
}
#endif

}  // namespace

TORCH_LIBRARY_FRAGMENT(hrm, m) {
  m.def("decode_linear(Tensor x, Tensor weight, Tensor? norm, float eps, Tensor? residual, bool gated) -> Tensor");
}

TORCH_LIBRARY_IMPL(hrm, CPU, m) {
  m.impl("decode_linear", &decode_linear_cpu);
}

#if HRM_WITH_CUDA
TORCH_LIBRARY_IMPL(hrm, CUDA, m) {
  m.impl("decode_linear", &decode_linear_cuda);
}
#endif

TORCH_LIBRARY_IMPL(hrm, Autograd, m) {
  m.impl("decode_linear", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace hrm::ops
