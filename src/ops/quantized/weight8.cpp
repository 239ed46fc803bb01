#include "hrm/ops/weight8.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>

#include "hrm/ops/linear.h"
#include "hrm/ops/linear_add.h"
#include "ops/common/op.h"
#include "ops/common/sizes.h"
#include "ops/quantized/weight8_impl.h"

namespace hrm::ops {
namespace {

bool is_weight8_format(at::ScalarType type) {
  return type == at::kFloat8_e4m3fn || type == at::kChar;
}

void check_weight8(const char* op, const Weight8& w, const at::Tensor& like) {
  TORCH_CHECK(w.values.dim() == 2 && w.values.numel() > 0 && is_weight8_format(w.values.scalar_type()) &&
                  w.values.is_contiguous() && w.values.device() == like.device(),
              op, ": values must be a contiguous matrix of Float8_e4m3fn or Char on ", like.device(), ", got ",
              w.values.scalar_type(), " of ", w.values.sizes(), " on ", w.values.device());
  TORCH_CHECK(w.scales.dim() == 1 && w.scales.size(0) == w.values.size(0) && w.scales.scalar_type() == at::kFloat &&
                  w.scales.is_contiguous() && w.scales.device() == like.device(),
              op, ": scales of values of ", w.values.sizes(), " must be ", w.values.size(0), " contiguous float32 on ",
              like.device(), ", got ", w.scales.scalar_type(), " of ", w.scales.sizes(), " on ", w.scales.device());
}

using LinearWeight8Op = at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, const OptionalTensor&,
                                   const OptionalTensor&);
const Op<LinearWeight8Op>& linear_weight8_op() {
  static const Op<LinearWeight8Op> op("hrm::linear_weight8");
  return op;
}

// The weight in x's dtype, in the workspace if there is one.
at::Tensor dequantized_weight8_for(const at::Tensor& x, const Weight8& weight, const OptionalTensor& workspace) {
  const at::Tensor to = workspace ? *workspace : at::empty(weight.values.sizes(), x.options());
  dequantize_weight8_(to, weight);
  return to;
}

}  // namespace

int64_t weight8_bytes(int64_t out, int64_t in) {
  return out * in + 4 * out;
}

int64_t Weight8::bytes() const {
  return static_cast<int64_t>(values.nbytes() + scales.nbytes());
}

double weight8_limit(at::ScalarType format) {
  return format == at::kChar ? 127 : 448;
}

void check_quantize_weight8(const at::Tensor& weight, at::ScalarType format) {
  TORCH_CHECK(
      at::isFloatingType(weight.scalar_type()) && weight.element_size() > 1 && weight.dim() == 2 && weight.numel() > 0,
      "hrm::quantize_weight8: weight must be a matrix of float32, bfloat16 or float16 and not empty, got ",
      weight.scalar_type(), " of ", weight.sizes());
  TORCH_CHECK(is_weight8_format(format), "hrm::quantize_weight8: format must be Float8_e4m3fn or Char, got ", format,
              " (weight of ", weight.sizes(), ")");
}

void check_dequantize_weight8(const at::Tensor& out, const Weight8& from) {
  constexpr const char* kOp = "hrm::dequantize_weight8_";
  check_weight8(kOp, from, out);
  TORCH_CHECK(at::isFloatingType(out.scalar_type()) && out.element_size() > 1 && out.is_contiguous() &&
                  out.sizes() == from.values.sizes(),
              kOp, ": out must be contiguous float32, bfloat16 or float16 of ", from.values.sizes(), ", got ",
              out.scalar_type(), " of ", out.sizes(), out.is_contiguous() ? "" : ", not contiguous");
}

void check_linear_weight8(const at::Tensor& x, const Weight8& weight, const OptionalTensor& residual,
                          const OptionalTensor& workspace) {
  constexpr const char* kOp = "hrm::linear_weight8";
  check_weight8(kOp, weight, x);
  const at::Tensor& values = weight.values;
  TORCH_CHECK(
      at::isFloatingType(x.scalar_type()) && x.element_size() > 1 && x.dim() >= 1 && x.size(-1) == values.size(1), kOp,
      ": x (..., in) of float32, bfloat16 or float16 and the weight (out, in) do not fit, got ", x.scalar_type(),
      " of ", x.sizes(), " and ", values.sizes());
  TORCH_CHECK(!residual || (residual->sizes().vec() == with_last_size(x, values.size(0)) &&
                            residual->scalar_type() == x.scalar_type() && residual->device() == x.device()),
              kOp, ": residual must be (..., out) of x's dtype and device, got ",
              residual ? residual->sizes() : at::IntArrayRef(), " for ", x.sizes(), " and ", values.sizes());
  TORCH_CHECK(!workspace || (workspace->sizes() == values.sizes() && workspace->scalar_type() == x.scalar_type() &&
                             workspace->device() == x.device() && workspace->is_contiguous()),
              kOp, ": workspace must be contiguous, of x's dtype and device and of ", values.sizes(), ", got ",
              workspace ? workspace->sizes() : at::IntArrayRef(), " for x of ", x.sizes());
}

Weight8 quantize_weight8(const at::Tensor& weight, at::ScalarType format) {
  static const Op<Weight8Parts(const at::Tensor&, at::ScalarType)> op("hrm::quantize_weight8");
  auto [values, scales] = op(weight, format);
  return {.values = values, .scales = scales};
}

void dequantize_weight8_(const at::Tensor& out, const Weight8& from) {
  static const Op<void(const at::Tensor&, const at::Tensor&, const at::Tensor&)> op("hrm::dequantize_weight8_");
  op(out, from.values, from.scales);
}

at::Tensor dequantize_weight8(const Weight8& from, at::ScalarType dtype) {
  const at::Tensor out = at::empty(from.values.sizes(), from.scales.options().dtype(dtype));
  dequantize_weight8_(out, from);
  return out;
}

at::Tensor linear_weight8(const at::Tensor& x, const Weight8& weight, const OptionalTensor& residual,
                          const OptionalTensor& workspace) {
  return linear_weight8_op()(x, weight.values, weight.scales, residual, workspace);
}

at::Tensor linear_weight8_dequantized(const at::Tensor& x, const Weight8& weight, const OptionalTensor& residual,
                                      const OptionalTensor& workspace) {
  const at::NoGradGuard no_grad;
  const at::Tensor w = dequantized_weight8_for(x, weight, workspace);
  return residual ? linear_add(x, w, w, *residual) : linear(x, w, w);
}

namespace {

// Rows of the reference at a time, so that its float32 copies stay in the cache.
constexpr int64_t kWeight8Piece = int64_t{1} << 18;

template <class Run>
void by_weight8_rows(const at::Tensor& matrix, const Run& run) {
  const int64_t rows = matrix.size(0),
                piece = std::max<int64_t>(1, kWeight8Piece / std::max<int64_t>(1, matrix.size(1)));
  for (int64_t first = 0; first < rows; first += piece) run(first, std::min(piece, rows - first));
}

Weight8Parts quantize_weight8_cpu(const at::Tensor& weight, at::ScalarType format) {
  check_quantize_weight8(weight, format);
  const at::Tensor values = at::empty(weight.sizes(), weight.options().dtype(format));
  const at::Tensor scales = at::empty({weight.size(0)}, weight.options().dtype(at::kFloat));
  by_weight8_rows(weight, [&](int64_t first, int64_t count) {
    const Weight8 piece = reference::quantize_weight8(weight.narrow(0, first, count), format);
    values.narrow(0, first, count).copy_(piece.values);
    scales.narrow(0, first, count).copy_(piece.scales);
  });
  return {values, scales};
}

void dequantize_weight8_cpu_(const at::Tensor& out, const at::Tensor& values, const at::Tensor& scales) {
  check_dequantize_weight8(out, {.values = values, .scales = scales});
  by_weight8_rows(out, [&](int64_t first, int64_t count) {
    reference::dequantize_weight8_(out.narrow(0, first, count), {.values = values.narrow(0, first, count),
                                                                 .scales = scales.narrow(0, first, count)});
  });
}

at::Tensor linear_weight8_cpu(const at::Tensor& x, const at::Tensor& values, const at::Tensor& scales,
                              const OptionalTensor& residual, const OptionalTensor& workspace) {
  const Weight8 weight{.values = values, .scales = scales};
  check_linear_weight8(x, weight, residual, workspace);
  return linear_weight8_dequantized(x, weight, residual, workspace);
}

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct LinearWeight8 : torch::autograd::Function<LinearWeight8> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& values,
                            const at::Tensor& scales, const OptionalTensor& residual, const OptionalTensor& workspace) {
    at::AutoDispatchBelowADInplaceOrView below;
    // The workspace is no saved variable, because other layers overwrite it between the passes.
    std::vector<at::Tensor> kept{values, scales};
    if (workspace) kept.push_back(*workspace);
    ctx->saved_data["weight"] = kept;
    ctx->saved_data["needs_x"] = x.requires_grad();
    ctx->saved_data["has_residual"] = residual.has_value();
    return linear_weight8_op()(x, values, scales, residual, workspace);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    TORCH_CHECK(!at::GradMode::is_enabled(), "hrm::linear_weight8 has no second derivative (grad_y ", grads[0].sizes(),
                ")");
    const std::vector<at::Tensor> kept = ctx->saved_data["weight"].toTensorVector();
    variable_list out(5);
    if (ctx->saved_data["needs_x"].toBool()) {
      const OptionalTensor workspace = kept.size() > 2 ? OptionalTensor(kept[2]) : std::nullopt;
      out[0] =
          linear_grad_x(grads[0], dequantized_weight8_for(grads[0], {.values = kept[0], .scales = kept[1]}, workspace));
    }
    if (ctx->saved_data["has_residual"].toBool()) out[3] = grads[0];
    return out;
  }
};

at::Tensor linear_weight8_autograd(const at::Tensor& x, const at::Tensor& values, const at::Tensor& scales,
                                   const OptionalTensor& residual, const OptionalTensor& workspace) {
  if (at::GradMode::is_enabled() && (x.requires_grad() || (residual && residual->requires_grad()))) {
    return LinearWeight8::apply(x, values, scales, residual, workspace);
  }
  at::AutoDispatchBelowADInplaceOrView below;
  return linear_weight8_op()(x, values, scales, residual, workspace);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(hrm, m) {
  m.def("quantize_weight8(Tensor weight, ScalarType format) -> (Tensor values, Tensor scales)");
  m.def("dequantize_weight8_(Tensor(a!) out, Tensor values, Tensor scales) -> ()");
  m.def("linear_weight8(Tensor x, Tensor values, Tensor scales, Tensor? residual, Tensor(a!)? workspace) -> Tensor");
}

TORCH_LIBRARY_IMPL(hrm, CPU, m) {
  m.impl("quantize_weight8", &quantize_weight8_cpu);
  m.impl("dequantize_weight8_", &dequantize_weight8_cpu_);
  m.impl("linear_weight8", &linear_weight8_cpu);
}

TORCH_LIBRARY_IMPL(hrm, Autograd, m) {
  m.impl("linear_weight8", &linear_weight8_autograd);
  for (const char* op : {"quantize_weight8", "dequantize_weight8_"}) {
    m.impl(op, torch::autograd::autogradNotImplementedFallback());
  }
}

}  // namespace hrm::ops
