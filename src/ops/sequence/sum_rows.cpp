#include "hrm/ops/sum_rows.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <sstream>

#include "ops/common/op.h"
#include "ops/common/optional_tensor.h"
#include "ops/sequence/sum_rows_impl.h"

namespace hrm::ops {

namespace {

RowMap map_of(const at::Tensor& rows, const at::Tensor& back, const OptionalTensor& rows_begin,
              const OptionalTensor& back_begin) {
  return {rows, back, rows_begin.value_or(at::Tensor()), back_begin.value_or(at::Tensor())};
}

}  // namespace

at::Tensor sum_rows(const at::Tensor& x, const RowMap& map, const at::Tensor& base) {
  using Signature = at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, const OptionalTensor&,
                               const OptionalTensor&, const OptionalTensor&);
  static const Op<Signature> op("hrm::sum_rows");
  return op(x, map.rows, map.back, optional_tensor(map.rows_begin), optional_tensor(map.back_begin),
            optional_tensor(base));
}

void check_sum_rows(const at::Tensor& x, const RowMap& map, const at::Tensor& base) {
  const auto is_table = [&](const at::Tensor& t, int64_t dim) {
    return t.dim() == dim && t.scalar_type() == at::kInt && t.is_contiguous() && t.device() == x.device();
  };
  const auto is_side = [&](const at::Tensor& entries, const at::Tensor& begin) {
    if (!begin.defined()) return is_table(entries, 2);
    return is_table(entries, 1) && is_table(begin, 1) && begin.size(0) > 0;
  };
  const auto shown = [](const at::Tensor& entries, const at::Tensor& begin) {
    std::ostringstream text;
    text << entries.sizes() << " " << entries.scalar_type();
    if (begin.defined()) text << " by " << begin.sizes() << " " << begin.scalar_type();
    return text.str();
  };
  TORCH_CHECK(x.dim() == 2 && at::isFloatingType(x.scalar_type()) && is_side(map.rows, map.rows_begin) &&
                  is_side(map.back, map.back_begin) && map.reversed().count() == x.size(0),
              "hrm::sum_rows: floating-point x (M, C) and contiguous int32 tables rows (R, S) and back (M, P) on its ",
              "device, or lists (E) with rows_begin (R + 1) and back_begin (M + 1), got ", x.sizes(), " ",
              x.scalar_type(), ", ", shown(map.rows, map.rows_begin), " and ", shown(map.back, map.back_begin));
  TORCH_CHECK(!base.defined() || (base.dim() == 2 && base.size(0) <= map.count() && base.size(1) == x.size(1) &&
                                  base.scalar_type() == x.scalar_type() && base.device() == x.device()),
              "hrm::sum_rows: base must be of the first rows of (", map.count(), ", ", x.size(1), ") ", x.scalar_type(),
              ", got ", base.sizes(), " ", base.scalar_type());
}

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor sum_rows_cpu(const at::Tensor& x, const at::Tensor& rows, const at::Tensor& back,
                        const OptionalTensor& rows_begin, const OptionalTensor& back_begin,
                        const OptionalTensor& base) {
  const RowMap map = map_of(rows, back, rows_begin, back_begin);
  const at::Tensor first = base.value_or(at::Tensor());
  check_sum_rows(x, map, first);
  return reference::sum_rows(x, map, first);
}

struct SumRows : torch::autograd::Function<SumRows> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const OptionalTensor& base, const RowMap& map) {
    at::AutoDispatchBelowADInplaceOrView below;
    ctx->save_for_backward({map.rows, map.back, map.rows_begin, map.back_begin});
    ctx->saved_data["base_rows"] = base ? base->size(0) : 0;
    return sum_rows(x, map, base.value_or(at::Tensor()));
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list tables = ctx->get_saved_variables();
    const RowMap map{tables[0], tables[1], tables[2], tables[3]};
    const int64_t base_rows = ctx->saved_data["base_rows"].toInt();
    return {ctx->needs_input_grad(0) ? sum_rows(grads[0], map.reversed()) : at::Tensor(),
            base_rows > 0 ? grads[0].narrow(0, 0, base_rows) : at::Tensor(), at::Tensor()};
  }
};

at::Tensor sum_rows_autograd(const at::Tensor& x, const at::Tensor& rows, const at::Tensor& back,
                             const OptionalTensor& rows_begin, const OptionalTensor& back_begin,
                             const OptionalTensor& base) {
  const RowMap map = map_of(rows, back, rows_begin, back_begin);
  if (at::GradMode::is_enabled() && (x.requires_grad() || (base && base->requires_grad()))) {
    return SumRows::apply(x, base, map);
  }
  at::AutoDispatchBelowADInplaceOrView below;
  return sum_rows(x, map, base.value_or(at::Tensor()));
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(hrm, m) {
  m.def(
      "sum_rows(Tensor x, Tensor rows, Tensor back, Tensor? rows_begin=None, Tensor? back_begin=None, "
      "Tensor? base=None) -> Tensor");
}

TORCH_LIBRARY_IMPL(hrm, CPU, m) {
  m.impl("sum_rows", &sum_rows_cpu);
}

TORCH_LIBRARY_IMPL(hrm, Autograd, m) {
  m.impl("sum_rows", &sum_rows_autograd);
}

}  // namespace hrm::ops
