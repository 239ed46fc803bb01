#include "hrm/ops/add_rms_norm.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "ops/common/accumulate_type.h"
#include "ops/common/op.h"
#include "ops/norm/add_rms_norm_impl.h"

namespace hrm::ops {

void check_add_pieces(const OptionalTensor& residual, const at::Tensor& pieces) {
  TORCH_CHECK(pieces.dim() == 3 && pieces.size(0) > 0 && at::isFloatingType(pieces.scalar_type()),
              "add_pieces: pieces must be (parts, n, D) of a floating type, got ", pieces.sizes(), " ",
              pieces.scalar_type());
  TORCH_CHECK(!residual || (residual->sizes() == pieces.sizes().slice(1) &&
                            residual->scalar_type() == pieces.scalar_type() && residual->device() == pieces.device()),
              "add_pieces: residual (n, D) and pieces (parts, n, D) do not fit, got ", residual->sizes(), " ",
              residual->scalar_type(), " and ", pieces.sizes(), " ", pieces.scalar_type());
}

void check_next_norm(const at::Tensor& sums, const at::Tensor& next_norm) {
  TORCH_CHECK(next_norm.dim() == 1 && next_norm.size(0) == sums.size(-1) && next_norm.scalar_type() == at::kFloat &&
                  next_norm.device() == sums.device(),
              "add_pieces_ahead: next_norm must be (D) float32 where pieces are (..., D), got ", next_norm.sizes(), " ",
              next_norm.scalar_type(), " for ", sums.sizes());
}

namespace reference {

at::Tensor add_pieces(const OptionalTensor& residual, const at::Tensor& pieces) {
  const at::ScalarType wide = accumulate_type(pieces);
  at::Tensor sum = residual ? residual->to(wide).add(pieces[0]) : pieces[0].to(wide, /*non_blocking=*/false, true);
  for (int64_t part = 1; part < pieces.size(0); ++part) sum.add_(pieces[part]);
  return sum.to(pieces.scalar_type());
}

}  // namespace reference

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor add_pieces_op(const OptionalTensor& residual, const at::Tensor& pieces) {
  static const Op<at::Tensor(const OptionalTensor&, const at::Tensor&)> op("hrm::add_pieces");
  return op(residual, pieces);
}

at::Tensor add_pieces_cpu(const OptionalTensor& residual, const at::Tensor& pieces) {
  check_add_pieces(residual, pieces);
  return reference::add_pieces(residual, pieces);
}

using ThreeTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

ThreeTensors add_pieces_ahead_cpu(const OptionalTensor& residual, const at::Tensor& pieces,
                                  const at::Tensor& next_norm) {
  check_add_pieces(residual, pieces);
  if (pieces.scalar_type() != at::kDouble) check_next_norm(pieces, next_norm);
  at::Tensor y = reference::add_pieces(residual, pieces);
  const at::Tensor none = at::empty({0}, y.options());
  return {std::move(y), none, none};
}

struct AddPieces : torch::autograd::Function<AddPieces> {
  static at::Tensor forward(AutogradContext* ctx, const OptionalTensor& residual, const at::Tensor& pieces) {
    at::AutoDispatchBelowADInplaceOrView below;
    ctx->saved_data["parts"] = pieces.size(0);
    ctx->saved_data["has_residual"] = residual.has_value();
    return add_pieces_op(residual, pieces);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const int64_t parts = ctx->saved_data["parts"].toInt();
    return {ctx->saved_data["has_residual"].toBool() ? grads[0] : at::Tensor(),
            grads[0].unsqueeze(0).expand({parts, -1, -1})};
  }
};

at::Tensor add_pieces_autograd(const OptionalTensor& residual, const at::Tensor& pieces) {
  if (at::GradMode::is_enabled() && (pieces.requires_grad() || (residual && residual->requires_grad()))) {
    return AddPieces::apply(residual, pieces);
  }
  at::AutoDispatchBelowADInplaceOrView below;
  return add_pieces_op(residual, pieces);
}

}  // namespace

at::Tensor add_pieces(const at::Tensor& residual, const Pieces& pieces) {
  return add_pieces_op(optional_tensor(residual), pieces.sums);
}

DecodedAhead add_pieces_ahead(const at::Tensor& residual, const Pieces& pieces, const at::Tensor& next_norm) {
  if (!next_norm.defined()) return {add_pieces(residual, pieces), {}};
  static const Op<ThreeTensors(const OptionalTensor&, const at::Tensor&, const at::Tensor&)> op(
      "hrm::add_pieces_ahead");
  auto [y, scaled, squares] = op(optional_tensor(residual), pieces.sums, next_norm);
  if (squares.numel() == 0) return {y, {}};
  return {y, {scaled, squares}};
}

NormedStream add_rms_norm(const at::Tensor& residual, const Pieces& pieces, const at::Tensor& weight, double eps) {
  return weighted_rms_norm_stream(add_pieces(residual, pieces), weight, eps);
}

TORCH_LIBRARY_FRAGMENT(hrm, m) {
  m.def("add_pieces(Tensor? residual, Tensor pieces) -> Tensor");
  m.def("add_pieces_ahead(Tensor? residual, Tensor pieces, Tensor next_norm) -> (Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(hrm, CPU, m) {
  m.impl("add_pieces", &add_pieces_cpu);
  m.impl("add_pieces_ahead", &add_pieces_ahead_cpu);
}

TORCH_LIBRARY_IMPL(hrm, Autograd, m) {
  m.impl("add_pieces", &add_pieces_autograd);
  m.impl("add_pieces_ahead", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace hrm::ops
