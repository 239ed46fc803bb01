#include "hrm/ops/weight8.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>

#include "hrm/build_config.h"
#include "hrm/ops/fp8_rows.h"
#include "hrm/ops/linear.h"
#include "hrm/ops/linear_add.h"
#include "ops/common/op.h"
#include "ops/common/sizes.h"
#include "ops/quantized/weight8_impl.h"

#if HRM_WITH_CUDA
#include "ops/quantized/fp8_rows_impl.h"
#endif

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
  TORCH_CHECK(w.transposed.defined() == w.ones.defined() &&
                  (!w.transposed.defined() ||
                   (w.values.scalar_type() == at::kFloat8_e4m3fn && w.transposed.scalar_type() == at::kFloat8_e4m3fn &&
                    w.transposed.sizes() == at::IntArrayRef({w.values.size(1), w.values.size(0)}) &&
                    w.transposed.is_contiguous() && w.transposed.device() == like.device())),
              op, ": transposed of values of ", w.values.sizes(), " must be contiguous Float8_e4m3fn of ",
              w.values.size(1), " x ", w.values.size(0), ", with ones, got ",
              w.transposed.defined() ? w.transposed.sizes() : at::IntArrayRef());
  TORCH_CHECK(w.scales.dim() == 1 && w.scales.size(0) == w.values.size(0) && w.scales.scalar_type() == at::kFloat &&
                  w.scales.is_contiguous() && w.scales.device() == like.device(),
              op, ": scales of values of ", w.values.sizes(), " must be ", w.values.size(0), " contiguous float32 on ",
              like.device(), ", got ", w.scales.scalar_type(), " of ", w.scales.sizes(), " on ", w.scales.device());
}

using LinearWeight8Op = at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, const OptionalTensor&,
                                   const OptionalTensor&, bool);
const Op<LinearWeight8Op>& linear_weight8_op() {
  static const Op<LinearWeight8Op> op("hrm::linear_weight8");
  return op;
}

using LinearWeight8GradientOp = at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                           const OptionalTensor&, const OptionalTensor&, const OptionalTensor&, bool);

void check_workspace(const char* op, const at::Tensor& x, const Weight8& weight, const OptionalTensor& workspace) {
  const at::Tensor& values = weight.values;
  TORCH_CHECK(!workspace || (workspace->sizes() == values.sizes() && workspace->scalar_type() == x.scalar_type() &&
                             workspace->device() == x.device() && workspace->is_contiguous()),
              op, ": workspace must be contiguous, of x's dtype and device and of ", values.sizes(), ", got ",
              workspace ? workspace->sizes() : at::IntArrayRef(), " for x of ", x.sizes());
}

// Room for the weight's bytes transposed, at the beginning of the workspace if there is one.
at::Tensor transposed_room(const Weight8& weight, const OptionalTensor& workspace) {
  const int64_t out = weight.values.size(0), in = weight.values.size(1);
  if (!workspace) return at::empty({in, out}, weight.values.options());
  const at::Tensor bytes = workspace->view({-1}).view(at::kByte).narrow(0, 0, out * in);
  return bytes.view({in, out}).view(weight.values.scalar_type());
}

// values (n, out) times the weight's bytes.
at::Tensor product_with_transposed(const at::Tensor& values, const at::Tensor& scales, const Weight8& weight,
                                   const OptionalTensor& workspace, at::ScalarType dtype, RowsProduct product) {
  if (weight.transposed.defined()) {
    return product(values, weight.transposed, scales, weight.ones, dtype, std::nullopt);
  }
  const at::Tensor transposed = transposed_room(weight, workspace),
                   ones = at::empty({weight.values.size(1)}, weight.scales.options());
  transpose_fp8_(transposed, ones, weight.values);
  return product(values, transposed, scales, ones, dtype, std::nullopt);
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
  const size_t kept = transposed.defined() ? transposed.nbytes() + ones.nbytes() : 0;
  return static_cast<int64_t>(values.nbytes() + scales.nbytes() + kept);
}

Weight8 with_transposed(const Weight8& weight) {
  Weight8 out = weight;
  out.transposed = at::empty({weight.values.size(1), weight.values.size(0)}, weight.values.options());
  out.ones = at::empty({weight.values.size(1)}, weight.scales.options());
  transpose_fp8_(out.transposed, out.ones, weight.values);
  return out;
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
  check_workspace(kOp, x, weight, workspace);
}

void check_linear_weight8_grad_x(const at::Tensor& grad, const Weight8& weight, const OptionalTensor& workspace) {
  constexpr const char* kOp = "hrm::linear_weight8_grad_x";
  check_weight8(kOp, weight, grad);
  TORCH_CHECK(at::isFloatingType(grad.scalar_type()) && grad.element_size() > 1 && grad.dim() >= 1 &&
                  grad.size(-1) == weight.values.size(0),
              kOp, ": grad (..., out) of float32, bfloat16 or float16 and the weight (out, in) do not fit, got ",
              grad.scalar_type(), " of ", grad.sizes(), " and ", weight.values.sizes());
  check_workspace(kOp, grad, weight, workspace);
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
                          const OptionalTensor& workspace, bool fp8_products) {
  return linear_weight8_op()(x, weight.values, weight.scales, residual, workspace, fp8_products);
}

at::Tensor linear_weight8_grad_x(const at::Tensor& grad, const Weight8& weight, const OptionalTensor& workspace,
                                 bool fp8_products) {
  static const Op<LinearWeight8GradientOp> op("hrm::linear_weight8_grad_x");
  return op(grad, weight.values, weight.scales, optional_tensor(weight.transposed), optional_tensor(weight.ones),
            workspace, fp8_products);
}

bool has_fp8_products(at::Device device) {
#if HRM_WITH_CUDA
  return library_multiplies_fp8_rows(device, at::kBFloat16);
#else
  static_cast<void>(device);
  return false;
#endif
}

bool takes_fp8_rows(const at::Tensor& rows, const Weight8& weight) {
#if HRM_WITH_CUDA
  const int64_t width = rows.size(-1), count = width == 0 ? 0 : rows.numel() / width;
  return weight.values.scalar_type() == at::kFloat8_e4m3fn && count > kWeight8Rows && weight.values.size(0) % 16 == 0 &&
         weight.values.size(1) % 16 == 0 && library_multiplies_fp8_rows(rows.device(), rows.scalar_type());
#else
  static_cast<void>(rows);
  static_cast<void>(weight);
  return false;
#endif
}

at::Tensor linear_weight8_dequantized(const at::Tensor& x, const Weight8& weight, const OptionalTensor& residual,
                                      const OptionalTensor& workspace) {
  const at::NoGradGuard no_grad;
  const at::Tensor w = dequantized_weight8_for(x, weight, workspace);
  return residual ? linear_add(x, w, w, *residual) : linear(x, w, w);
}

at::Tensor linear_weight8_grad_x_dequantized(const at::Tensor& grad, const Weight8& weight,
                                             const OptionalTensor& workspace) {
  return linear_grad_x(grad, dequantized_weight8_for(grad, weight, workspace));
}

at::Tensor linear_weight8_by_rows(const at::Tensor& x, const Weight8& weight, const OptionalTensor& residual,
                                  RowsProduct product) {
  const int64_t out = weight.values.size(0), in = weight.values.size(1);
  const auto [values, scales] = quantize_fp8_rows(x.reshape({-1, in}));
  const OptionalTensor added = residual ? OptionalTensor(residual->reshape({-1, out})) : std::nullopt;
  const at::Tensor y = product(values, weight.values, scales, weight.scales, x.scalar_type(), added);
  return y.defined() ? y.view(with_last_size(x, out)) : y;
}

at::Tensor linear_weight8_grad_x_by_rows(const at::Tensor& grad, const Weight8& weight, const OptionalTensor& workspace,
                                         RowsProduct product) {
  const int64_t out = weight.values.size(0), in = weight.values.size(1);
  // The weight's scales belong to what this product sums over, so they go to the gradient's columns.
  const auto [values, scales] = quantize_fp8_rows(grad.reshape({-1, out}), weight.scales);
  const at::Tensor grad_x = product_with_transposed(values, scales, weight, workspace, grad.scalar_type(), product);
  return grad_x.defined() ? grad_x.view(with_last_size(grad, in)) : grad_x;
}

at::Tensor linear_weight8_grad_rows(const at::Tensor& values, const at::Tensor& scales, const Weight8& weight,
                                    const OptionalTensor& workspace, at::ScalarType dtype) {
  return product_with_transposed(values, scales, weight, workspace, dtype, &fp8_rows_product);
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

// A CPU does not quantise rows: it has no products in 8 bits that would be faster.
at::Tensor linear_weight8_cpu(const at::Tensor& x, const at::Tensor& values, const at::Tensor& scales,
                              const OptionalTensor& residual, const OptionalTensor& workspace, bool) {
  const Weight8 weight{.values = values, .scales = scales};
  check_linear_weight8(x, weight, residual, workspace);
  return linear_weight8_dequantized(x, weight, residual, workspace);
}

at::Tensor linear_weight8_grad_x_cpu(const at::Tensor& grad, const at::Tensor& values, const at::Tensor& scales,
                                     const OptionalTensor& transposed, const OptionalTensor& ones,
                                     const OptionalTensor& workspace, bool) {
  const Weight8 weight = weight8_of(values, scales, transposed, ones);
  check_linear_weight8_grad_x(grad, weight, workspace);
  return linear_weight8_grad_x_dequantized(grad, weight, workspace);
}

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct LinearWeight8 : torch::autograd::Function<LinearWeight8> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& values,
                            const at::Tensor& scales, const OptionalTensor& residual, const OptionalTensor& workspace,
                            bool fp8_products) {
    at::AutoDispatchBelowADInplaceOrView below;
    // The workspace is no saved variable, because other layers overwrite it between the passes.
    std::vector<at::Tensor> kept{values, scales};
    if (workspace) kept.push_back(*workspace);
    ctx->saved_data["weight"] = kept;
    ctx->saved_data["needs_x"] = x.requires_grad();
    ctx->saved_data["has_residual"] = residual.has_value();
    ctx->saved_data["fp8_products"] = fp8_products;
    return linear_weight8_op()(x, values, scales, residual, workspace, fp8_products);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    TORCH_CHECK(!at::GradMode::is_enabled(), "hrm::linear_weight8 has no second derivative (grad_y ", grads[0].sizes(),
                ")");
    const std::vector<at::Tensor> kept = ctx->saved_data["weight"].toTensorVector();
    variable_list out(6);
    if (ctx->saved_data["needs_x"].toBool()) {
      const OptionalTensor workspace = kept.size() > 2 ? OptionalTensor(kept[2]) : std::nullopt;
      out[0] = linear_weight8_grad_x(grads[0], {.values = kept[0], .scales = kept[1]}, workspace,
                                     ctx->saved_data["fp8_products"].toBool());
    }
    if (ctx->saved_data["has_residual"].toBool()) out[3] = grads[0];
    return out;
  }
};

at::Tensor linear_weight8_autograd(const at::Tensor& x, const at::Tensor& values, const at::Tensor& scales,
                                   const OptionalTensor& residual, const OptionalTensor& workspace, bool fp8_products) {
  if (at::GradMode::is_enabled() && (x.requires_grad() || (residual && residual->requires_grad()))) {
    return LinearWeight8::apply(x, values, scales, residual, workspace, fp8_products);
  }
  at::AutoDispatchBelowADInplaceOrView below;
  return linear_weight8_op()(x, values, scales, residual, workspace, fp8_products);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(hrm, m) {
  m.def("quantize_weight8(Tensor weight, ScalarType format) -> (Tensor values, Tensor scales)");
  m.def("dequantize_weight8_(Tensor(a!) out, Tensor values, Tensor scales) -> ()");
  m.def(
      "linear_weight8(Tensor x, Tensor values, Tensor scales, Tensor? residual, Tensor(a!)? workspace, "
      "bool fp8_products) -> Tensor");
  m.def(
      "linear_weight8_grad_x(Tensor grad, Tensor values, Tensor scales, Tensor? transposed, Tensor? ones, "
      "Tensor(a!)? workspace, bool fp8_products) -> Tensor");
}

TORCH_LIBRARY_IMPL(hrm, CPU, m) {
  m.impl("quantize_weight8", &quantize_weight8_cpu);
  m.impl("dequantize_weight8_", &dequantize_weight8_cpu_);
  m.impl("linear_weight8", &linear_weight8_cpu);
  m.impl("linear_weight8_grad_x", &linear_weight8_grad_x_cpu);
}

TORCH_LIBRARY_IMPL(hrm, Autograd, m) {
  m.impl("linear_weight8", &linear_weight8_autograd);
  for (const char* op : {"quantize_weight8", "dequantize_weight8_", "linear_weight8_grad_x"}) {
    m.impl(op, torch::autograd::autogradNotImplementedFallback());
  }
}

}  // namespace hrm::ops
