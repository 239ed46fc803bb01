#include "hrm/ops/add_rms_norm.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>

#include "ops/common/accumulate_type.h"
#include "ops/common/optional_tensor.h"

namespace hrm::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct AddPieces : torch::autograd::Function<AddPieces> {
  static at::Tensor forward(AutogradContext* ctx, const std::optional<at::Tensor>& residual, const at::Tensor& pieces) {
    const at::ScalarType wide = accumulate_type(pieces);
    at::Tensor sum = residual ? residual->to(wide).add(pieces[0]) : pieces[0].to(wide, /*non_blocking=*/false, true);
    for (int64_t part = 1; part < pieces.size(0); ++part) sum.add_(pieces[part]);
    ctx->saved_data["parts"] = pieces.size(0);
    ctx->saved_data["has_residual"] = residual.has_value();
    return sum.to(pieces.scalar_type());
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const int64_t parts = ctx->saved_data["parts"].toInt();
    return {ctx->saved_data["has_residual"].toBool() ? grads[0] : at::Tensor(),
            grads[0].unsqueeze(0).expand({parts, -1, -1})};
  }
};

}  // namespace

at::Tensor add_pieces(const at::Tensor& residual, const Pieces& pieces) {
  const at::Tensor& sums = pieces.sums;
  TORCH_CHECK(sums.dim() == 3 && sums.size(0) > 0 && at::isFloatingType(sums.scalar_type()),
              "add_pieces: pieces must be (parts, n, D) of a floating type, got ", sums.sizes(), " ",
              sums.scalar_type());
  TORCH_CHECK(!residual.defined() ||
                  (residual.sizes() == sums.sizes().slice(1) && residual.scalar_type() == sums.scalar_type()),
              "add_pieces: residual (n, D) and pieces (parts, n, D) do not fit, got ", residual.sizes(), " and ",
              sums.sizes());
  return AddPieces::apply(optional_tensor(residual), sums);
}

NormedStream add_rms_norm(const at::Tensor& residual, const Pieces& pieces, const at::Tensor& weight, double eps) {
  return weighted_rms_norm_stream(add_pieces(residual, pieces), weight, eps);
}

}  // namespace hrm::ops
