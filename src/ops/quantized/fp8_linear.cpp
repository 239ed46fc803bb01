#include "hrm/ops/fp8_linear.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <vector>

#include "hrm/ops/fp8.h"
#include "hrm/ops/fp8_rows.h"
#include "ops/common/op.h"
#include "ops/quantized/fp8_linear_impl.h"

namespace hrm::ops {
namespace {

bool is_8bit(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kFloat8_e4m3fn || tensor.scalar_type() == at::kFloat8_e5m2;
}

}  // namespace

void check_wide_slot(const char* op, const char* name, const at::Tensor& slot, const at::Tensor& like) {
  TORCH_CHECK(slot.dim() == 1 && slot.size(0) == kFp8WideSlot && slot.scalar_type() == at::kFloat &&
                  slot.is_contiguous() && slot.device() == like.device(),
              op, ": ", name, " must be 8 contiguous float32 values on ", like.device(), ", got ", slot.scalar_type(),
              " of shape ", slot.sizes(), " with strides ", slot.strides(), " on ", slot.device());
}

namespace {

using Pair = void(const at::Tensor&, const OptionalTensor&, const OptionalTensor&, const at::Tensor&);
using Product = at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, at::ScalarType,
                           const OptionalTensor&);
using Accumulate = void(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&);
using LinearOp = at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                            const at::Tensor&, bool, const at::Tensor&, const OptionalTensor&, std::optional<double>,
                            const OptionalTensor&, bool, const OptionalTensor&);

at::Tensor linear_op(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& weight_slot,
                     const at::Tensor& x_slot, const at::Tensor& grad_slot, bool e5m2, const at::Tensor& master,
                     const OptionalTensor& grad_weight, std::optional<double> margin, const OptionalTensor& residual,
                     bool x_is_kept, const OptionalTensor& weight_t) {
  static const Op<LinearOp> op("hrm::fp8_linear");
  return op(x, weight, weight_slot, x_slot, grad_slot, e5m2, master, grad_weight, margin, residual, x_is_kept,
            weight_t);
}

// The slot that x is quantised by.
at::Tensor slot_for(const at::Tensor& x, const at::Tensor& slot, std::optional<double> margin) {
  return margin ? fp8_scale_now(x, slot, *margin) : slot;
}

OptionalTensor as_rows(const OptionalTensor& x) {
  return x ? std::optional(x->reshape({-1, x->size(-1)})) : std::nullopt;
}

std::vector<int64_t> with_last(const at::Tensor& x, int64_t last) {
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() = last;
  return sizes;
}

void check_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& weight_slot,
                  const at::Tensor& x_slot, const at::Tensor& grad_slot, const OptionalTensor& weight_t) {
  constexpr const char* kOp = "hrm::fp8_linear";
  TORCH_CHECK(x.dim() >= 1 && weight.dim() == 2 && x.size(-1) == weight.size(1) && weight.size(0) % 16 == 0 &&
                  weight.size(1) % 16 == 0 && weight.numel() > 0 && x.numel() / weight.size(1) % 16 == 0,
              kOp, ": x (..., in) and weight (out, in) need a number of rows, an in and an out that are multiples of ",
              "16, got ", x.sizes(), " and ", weight.sizes());
  TORCH_CHECK(weight.scalar_type() == at::kFloat8_e4m3fn && weight.device() == x.device() && weight.is_contiguous(),
              kOp, ": weight must be contiguous Float8_e4m3fn on ", x.device(), ", got ", weight.scalar_type(),
              " of shape ", weight.sizes(), " with strides ", weight.strides(), " on ", weight.device());
  TORCH_CHECK(!weight_t || (weight_t->sizes() == at::IntArrayRef({weight.size(1), weight.size(0)}) &&
                            weight_t->scalar_type() == at::kFloat8_e4m3fn && weight_t->device() == x.device()),
              kOp, ": the transposed weight must be Float8_e4m3fn of shape [", weight.size(1), ", ", weight.size(0),
              "], got ", weight_t ? weight_t->sizes() : at::IntArrayRef());
  check_wide_slot(kOp, "weight_slot", weight_slot, x);
  check_wide_slot(kOp, "x_slot", x_slot, x);
  check_wide_slot(kOp, "grad_slot", grad_slot, x);
}

}  // namespace

void check_quantize_fp8_pair(const at::Tensor& x, const OptionalTensor& values, const OptionalTensor& transposed,
                             const at::Tensor& slot) {
  constexpr const char* kOp = "hrm::quantize_fp8_pair_";
  TORCH_CHECK(x.dim() == 2 &&
                  (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf),
              kOp, ": x must be a matrix of float32, bfloat16 or float16, got ", x.scalar_type(), " of shape ",
              x.sizes());
  TORCH_CHECK(values || transposed, kOp, ": there is nothing to write (x has shape ", x.sizes(), ")");
  const auto check = [&](const char* name, const OptionalTensor& to, int64_t rows, int64_t columns) {
    if (!to) return;
    TORCH_CHECK(is_8bit(*to) && to->is_contiguous() && to->sizes() == at::IntArrayRef({rows, columns}) &&
                    to->device() == x.device(),
                kOp, ": ", name, " must be contiguous 8-bit floats of shape [", rows, ", ", columns, "] on ",
                x.device(), ", got ", to->scalar_type(), " of shape ", to->sizes(), " with strides ", to->strides(),
                " on ", to->device());
  };
  check("values", values, x.size(0), x.size(1));
  check("transposed", transposed, x.size(1), x.size(0));
  TORCH_CHECK(!values || !transposed || values->scalar_type() == transposed->scalar_type(), kOp,
              ": values and transposed must have one format, got ", values->scalar_type(), " and ",
              transposed->scalar_type(), " (x has shape ", x.sizes(), ")");
  check_wide_slot(kOp, "slot", slot, x);
}

void check_fp8_product(const char* op, const at::Tensor& a, const at::Tensor& b, const at::Tensor& a_slot,
                       const at::Tensor& b_slot) {
  TORCH_CHECK(a.dim() == 2 && b.dim() == 2 && a.size(1) == b.size(1) && a.size(0) % 16 == 0 && b.size(0) % 16 == 0 &&
                  a.size(1) % 16 == 0,
              op, ": a (m, k) and b (n, k) with m, n and k multiples of 16 do not fit, got ", a.sizes(), " and ",
              b.sizes());
  TORCH_CHECK(is_8bit(a) && is_8bit(b) && a.device() == b.device(), op,
              ": a and b must be 8-bit floats on one device, ", "got ", a.scalar_type(), " on ", a.device(), " and ",
              b.scalar_type(), " on ", b.device(), " (shapes ", a.sizes(), " and ", b.sizes(), ")");
  TORCH_CHECK(a.scalar_type() != at::kFloat8_e5m2 || b.scalar_type() != at::kFloat8_e5m2, op,
              ": GPUs do not multiply e5m2 by e5m2 (shapes ", a.sizes(), " and ", b.sizes(), ")");
  check_wide_slot(op, "a_slot", a_slot, a);
  check_wide_slot(op, "b_slot", b_slot, a);
}

void check_fp8_residual(const at::Tensor& a, const at::Tensor& b, at::ScalarType dtype,
                        const OptionalTensor& residual) {
  TORCH_CHECK(!residual || (residual->sizes() == at::IntArrayRef({a.size(0), b.size(0)}) &&
                            residual->scalar_type() == dtype && residual->device() == a.device()),
              "hrm::fp8_product: residual must be ", dtype, " of shape [", a.size(0), ", ", b.size(0), "] on ",
              a.device(), ", got ", residual->scalar_type(), " of shape ", residual->sizes(), " on ",
              residual->device());
}

void check_fp8_accumulate(const at::Tensor& grad, const at::Tensor& a, const at::Tensor& b, const at::Tensor& a_slot,
                          const at::Tensor& b_slot) {
  constexpr const char* kOp = "hrm::fp8_accumulate_";
  check_fp8_product(kOp, a, b, a_slot, b_slot);
  TORCH_CHECK(grad.sizes() == at::IntArrayRef({a.size(0), b.size(0)}) && grad.scalar_type() == at::kFloat &&
                  grad.is_contiguous() && grad.device() == a.device(),
              kOp, ": grad must be contiguous float32 of shape [", a.size(0), ", ", b.size(0), "] on ", a.device(),
              ", got ", grad.scalar_type(), " of shape ", grad.sizes(), " with strides ", grad.strides(), " on ",
              grad.device());
}

at::Tensor make_fp8_wide_slots(int64_t count, bool e5m2, at::Device device) {
  const at::Tensor slots = at::zeros({count, kFp8WideSlot}, at::device(device).dtype(at::kFloat));
  slots.narrow(1, 0, 2).fill_(1);
  slots.select(1, 3).fill_(e5m2 ? kFp8MaxE5m2 : kFp8Max);
  slots.select(1, 4).fill_(1);
  return slots;
}

Fp8Counts fp8_counts(const at::Tensor& slots) {
  return {slots.view(at::kInt).select(1, 5), slots.view(at::kLong).select(1, 3)};
}

void quantize_fp8_pair_into(const at::Tensor& x, const OptionalTensor& values, const OptionalTensor& transposed,
                            const at::Tensor& slot) {
  static const Op<Pair> op("hrm::quantize_fp8_pair_");
  op(x, values, transposed, slot);
}

std::tuple<at::Tensor, at::Tensor> quantize_fp8_pair(const at::Tensor& x, const at::Tensor& slot, bool e5m2,
                                                     bool values, bool transposed) {
  TORCH_CHECK(x.dim() == 2, "hrm::quantize_fp8_pair_: x must be a matrix, got ", x.sizes());
  const auto options = x.options().dtype(e5m2 ? at::kFloat8_e5m2 : at::kFloat8_e4m3fn);
  const at::Tensor as_it_stands = values ? at::empty(x.sizes(), options) : at::Tensor();
  const at::Tensor across = transposed ? at::empty({x.size(1), x.size(0)}, options) : at::Tensor();
  quantize_fp8_pair_into(x, optional_tensor(as_it_stands), optional_tensor(across), slot);
  return {as_it_stands, across};
}

void quantize_fp8_pair_(const at::Tensor& x, const at::Tensor& values, const at::Tensor& transposed,
                        const at::Tensor& slot) {
  quantize_fp8_pair_into(x, optional_tensor(values), optional_tensor(transposed), slot);
}

at::Tensor fp8_linear_forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& weight_slot,
                              const at::Tensor& x_slot, const at::Tensor& grad_slot, bool, const at::Tensor&,
                              const OptionalTensor&, std::optional<double> margin, const OptionalTensor& residual, bool,
                              const OptionalTensor& weight_t) {
  check_linear(x, weight, weight_slot, x_slot, grad_slot, weight_t);
  const at::Tensor rows = x.reshape({-1, x.size(-1)}), slot = slot_for(rows, x_slot, margin);
  const auto values = std::get<0>(quantize_fp8_pair(rows, slot, /*e5m2=*/false, /*values=*/true, /*transposed=*/false));
  return fp8_product(values, weight, slot, weight_slot, x.scalar_type(), as_rows(residual))
      .view(with_last(x, weight.size(0)));
}

at::Tensor fp8_product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& a_slot, const at::Tensor& b_slot,
                       at::ScalarType dtype, const OptionalTensor& residual) {
  static const Op<Product> op("hrm::fp8_product");
  return op(a, b, a_slot, b_slot, dtype, residual);
}

void fp8_accumulate_(const at::Tensor& grad, const at::Tensor& a, const at::Tensor& b, const at::Tensor& a_slot,
                     const at::Tensor& b_slot) {
  static const Op<Accumulate> op("hrm::fp8_accumulate_");
  op(grad, a, b, a_slot, b_slot);
}

at::Tensor fp8_linear(const at::Tensor& x, const Fp8Weight& weight, const at::Tensor& x_slot,
                      const at::Tensor& grad_slot, bool e5m2, const at::Tensor& master,
                      const std::optional<at::Tensor>& grad_weight, std::optional<double> margin,
                      const std::optional<at::Tensor>& residual, bool x_is_kept) {
  return linear_op(x, weight.values, weight.slot, x_slot, grad_slot, e5m2, master, grad_weight, margin, residual,
                   x_is_kept, optional_tensor(weight.transposed));
}

at::Tensor transposed_weight(const Fp8Weight& weight) {
  return weight.transposed.defined() ? weight.transposed : transposed_fp8(weight.values);
}

namespace {

void pair_cpu(const at::Tensor& x, const OptionalTensor& values, const OptionalTensor& transposed,
              const at::Tensor& slot) {
  check_quantize_fp8_pair(x, values, transposed, slot);
  reference::quantize_fp8_pair_(x, values, transposed, slot);
}

at::Tensor product_cpu(const at::Tensor& a, const at::Tensor& b, const at::Tensor& a_slot, const at::Tensor& b_slot,
                       at::ScalarType dtype, const OptionalTensor& residual) {
  check_fp8_product("hrm::fp8_product", a, b, a_slot, b_slot);
  check_fp8_residual(a, b, dtype, residual);
  return reference::fp8_product(a, b, a_slot, b_slot, dtype, residual);
}

void accumulate_cpu(const at::Tensor& grad, const at::Tensor& a, const at::Tensor& b, const at::Tensor& a_slot,
                    const at::Tensor& b_slot) {
  check_fp8_accumulate(grad, a, b, a_slot, b_slot);
  reference::fp8_accumulate_(grad, a, b, a_slot, b_slot);
}

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Fp8Linear : torch::autograd::Function<Fp8Linear> {
  // master is an argument so that the node exists whenever it trains, also where x needs no gradient.
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            const at::Tensor& weight_slot, const at::Tensor& x_slot, const at::Tensor& grad_slot,
                            bool e5m2, const at::Tensor& master, const OptionalTensor& grad_weight,
                            std::optional<double> margin, const OptionalTensor& residual, bool x_is_kept,
                            const OptionalTensor& weight_t) {
    at::AutoDispatchBelowADInplaceOrView below;
    check_linear(x, weight, weight_slot, x_slot, grad_slot, weight_t);
    const bool trains = master.requires_grad(), needs_x = x.requires_grad();
    const at::Tensor rows = x.reshape({-1, x.size(-1)}), slot = slot_for(rows, x_slot, margin);
    const auto [values, transposed] =
        quantize_fp8_pair(rows, slot, /*e5m2=*/false, /*values=*/true, trains && !x_is_kept);
    // Slots and buffers are no saved variables: a step changes them, which is not behind the graph's back.
    ctx->saved_data["slots"] = std::vector<at::Tensor>{weight_slot, slot, grad_slot};
    ctx->saved_data["e5m2"] = e5m2;
    ctx->saved_data["margin"] = margin;
    if (trains) ctx->saved_data["grad_weight"] = *grad_weight;
    ctx->save_for_backward({trains && !x_is_kept ? transposed : at::Tensor(), needs_x ? weight : at::Tensor(),
                            trains && x_is_kept ? x : at::Tensor(), needs_x && weight_t ? *weight_t : at::Tensor()});
    ctx->saved_data["has_residual"] = residual.has_value();
    return fp8_product(values, weight, slot, weight_slot, x.scalar_type(), as_rows(residual))
        .view(with_last(x, weight.size(0)));
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const at::Tensor& grad_y = grads[0];
    TORCH_CHECK(!at::GradMode::is_enabled(), "hrm::fp8_linear has no second derivative (grad_y ", grad_y.sizes(), ")");
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &x_t = saved[0], &weight = saved[1], &x = saved[2];
    const bool trains = x_t.defined() || x.defined();
    const auto slots = ctx->saved_data["slots"].toTensorVector();
    const at::Tensor &weight_slot = slots[0], &x_slot = slots[1];
    const at::Tensor rows = grad_y.reshape({-1, grad_y.size(-1)});
    const at::Tensor grad_slot = slot_for(rows, slots[2], ctx->saved_data["margin"].toOptional<double>());
    const auto [values, transposed] =
        quantize_fp8_pair(rows, grad_slot, ctx->saved_data["e5m2"].toBool(), weight.defined(), trains);
    if (trains) {
      const at::Tensor across = x.defined() ? std::get<1>(quantize_fp8_pair(x.reshape({-1, x.size(-1)}), x_slot,
                                                                            /*e5m2=*/false, /*values=*/false))
                                            : x_t;
      fp8_accumulate_(ctx->saved_data["grad_weight"].toTensor(), transposed, across, grad_slot, x_slot);
    }
    variable_list out(12);
    if (ctx->saved_data["has_residual"].toBool()) out[9] = grad_y;
    if (weight.defined()) {
      out[0] = fp8_product(values, transposed_weight({weight, weight_slot, saved[3]}), grad_slot, weight_slot,
                           grad_y.scalar_type())
                   .view(with_last(grad_y, weight.size(1)));
    }
    return out;
  }
};

at::Tensor linear_autograd(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& weight_slot,
                           const at::Tensor& x_slot, const at::Tensor& grad_slot, bool e5m2, const at::Tensor& master,
                           const OptionalTensor& grad_weight, std::optional<double> margin,
                           const OptionalTensor& residual, bool x_is_kept, const OptionalTensor& weight_t) {
  const bool through_residual = residual && residual->requires_grad();
  if (at::GradMode::is_enabled() && (x.requires_grad() || master.requires_grad() || through_residual)) {
    TORCH_CHECK(!master.requires_grad() || grad_weight, "hrm::fp8_linear: master of shape ", master.sizes(),
                " requires a gradient, so grad_weight must be given");
    return Fp8Linear::apply(x, weight, weight_slot, x_slot, grad_slot, e5m2, master, grad_weight, margin, residual,
                            x_is_kept, weight_t);
  }
  at::AutoDispatchBelowADInplaceOrView below;
  return linear_op(x, weight, weight_slot, x_slot, grad_slot, e5m2, master, grad_weight, margin, residual, x_is_kept,
                   weight_t);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(hrm, m) {
  m.def("quantize_fp8_pair_(Tensor x, Tensor(a!)? values, Tensor(b!)? transposed, Tensor(c!) slot) -> ()");
  m.def(
      "fp8_product(Tensor a, Tensor b, Tensor a_slot, Tensor b_slot, ScalarType dtype, Tensor? residual=None) -> "
      "Tensor");
  m.def("fp8_accumulate_(Tensor(a!) grad, Tensor a, Tensor b, Tensor a_slot, Tensor b_slot) -> ()");
  m.def(
      "fp8_linear(Tensor x, Tensor weight, Tensor weight_slot, Tensor(a!) x_slot, Tensor(b!) grad_slot, bool e5m2, "
      "Tensor master, Tensor? grad_weight, float? margin, Tensor? residual=None, bool x_is_kept=False, "
      "Tensor? weight_t=None) -> Tensor");
}

TORCH_LIBRARY_IMPL(hrm, CPU, m) {
  m.impl("quantize_fp8_pair_", &pair_cpu);
  m.impl("fp8_product", &product_cpu);
  m.impl("fp8_accumulate_", &accumulate_cpu);
  m.impl("fp8_linear", &fp8_linear_forward);
}

TORCH_LIBRARY_IMPL(hrm, Autograd, m) {
  m.impl("fp8_linear", &linear_autograd);
  for (const char* op : {"quantize_fp8_pair_", "fp8_product", "fp8_accumulate_"}) {
    m.impl(op, torch::autograd::autogradNotImplementedFallback());
  }
}

}  // namespace hrm::ops
