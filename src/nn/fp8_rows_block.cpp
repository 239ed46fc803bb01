#include "hrm/nn/fp8_rows_block.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <tuple>
#include <vector>

#include "hrm/base/error.h"
#include "hrm/ops/fp8_rows_block.h"
#include "nn/adapted_product.h"
#include "ops/common/optional_tensor.h"

namespace hrm::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The saved tensors of a node, taken in the order in which they were given.
class Saved {
 public:
  explicit Saved(AutogradContext* ctx) : all_(ctx->get_saved_variables()) {}

  const at::Tensor& next() { return all_[at_++]; }
  at::ArrayRef<at::Tensor> next(size_t count) {
    at_ += count;
    return at::ArrayRef<at::Tensor>(all_).slice(at_ - count, count);
  }

 private:
  variable_list all_;
  size_t at_ = 0;
};

// norm(x) as rows in 8 bits, its product, and what the backward pass needs of both.
struct Front {
  at::Tensor y;                   // (rows, out)
  std::vector<at::Tensor> saved;  // for FrontGradient

  static Front run(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& scale, double eps,
                   const AdaptedProduct& product) {
    const ops::NormedRows normed =
        ops::weighted_rms_norm_rows(matrix_of(x), scale.detach(), eps, /*wide=*/product.is_adapted());
    const AdaptedProduct::Result result = product.forward(normed.y, x.scalar_type());
    product.keep(ctx, "front");
    ctx->saved_data["trains_norm"] = scale.requires_grad();
    ctx->saved_data["needs_x"] = x.requires_grad();
    Front out{.y = result.y, .saved = {x, scale, normed.rstd}};
    const std::vector<at::Tensor> more = product.saved(normed.y.wide, result.u);
    out.saved.insert(out.saved.end(), more.begin(), more.end());
    return out;
  }
};

// Made of the saved tensors of Front, which come first.
struct FrontGradient {
  at::Tensor x, scale, rstd;
  AdaptedGradient product;
  bool trains_norm, needs_x;

  static FrontGradient of(AutogradContext* ctx, Saved& saved) {
    FrontGradient out{.x = saved.next(),
                      .scale = saved.next(),
                      .rstd = saved.next(),
                      .product = {},
                      .trains_norm = ctx->saved_data["trains_norm"].toBool(),
                      .needs_x = ctx->saved_data["needs_x"].toBool()};
    out.product = AdaptedGradient::of(ctx, "front", saved.next(AdaptedProduct::kSaved));
    return out;
  }

  at::ScalarType dtype() const { return x.scalar_type(); }
  const at::Tensor& factors() const { return product.weight.weight8.scales; }

  // The gradients of x and of the norm's scale, given that of the product, as rows in 8 bits or in the compute dtype,
  // and that of x by way of the residual addition.
  variable_list backward(const ops::Fp8RowsBeside& grad, const at::Tensor& grad_stream) const {
    return through_norm(product.backward(grad, dtype(), needs_x || trains_norm), grad_stream);
  }
  variable_list backward(const at::Tensor& grad, const at::Tensor& grad_stream) const {
    if (!needs_x && !trains_norm)
      return through_norm(product.backward(matrix_of(grad), /*needs_x=*/false), grad_stream);
    return backward(ops::fp8_rows_beside(matrix_of(grad), factors()), grad_stream);
  }

 private:
  variable_list through_norm(const at::Tensor& grad_y, const at::Tensor& grad_stream) const {
    if (!grad_y.defined()) return {at::Tensor(), at::Tensor()};
    const auto [grad_x, grad_scale] =
        ops::weighted_rms_norm_backward(grad_y, matrix_of(x), rstd, scale, matrix_of(grad_stream), trains_norm);
    return {grad_x.view(x.sizes()), grad_scale};
  }
};

using Masters = std::optional<at::Tensor>;

// The masters are arguments so that the node exists whenever they are trained, even if x needs no gradient.
struct RowsNormedLinear : torch::autograd::Function<RowsNormedLinear> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& scale,
                               const Masters& /*A_master*/, const Masters& /*B_master*/, const AdaptedProduct* product,
                               double eps) {
    const Front front = Front::run(ctx, x, scale, eps, *product);
    ctx->save_for_backward(front.saved);
    std::vector<int64_t> sizes = x.sizes().vec();
    sizes.back() = front.y.size(1);
    return {front.y.view(sizes), x.detach()};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    TORCH_CHECK(!at::GradMode::is_enabled(), "a frozen layer in 8 bits has no second derivative");
    Saved saved(ctx);
    variable_list out = FrontGradient::of(ctx, saved).backward(grads[0], grads[1]);
    out.resize(6);
    return out;
  }
};

struct RowsQkvHeads : torch::autograd::Function<RowsQkvHeads> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& scale,
                               const Masters& /*A_master*/, const Masters& /*B_master*/, const AdaptedProduct* product,
                               double eps, const ops::QkvSizes& sizes, const ops::QkvHeadOptions& options) {
    Front front = Front::run(ctx, x, scale, eps, *product);
    const at::Tensor qkv = front.y.view({x.size(0), x.size(1), -1});
    front.saved.insert(front.saved.end(), {options.cos, options.sin, options.q_weight, options.k_weight,
                                           options.q_weight.defined() ? qkv : at::Tensor()});
    ctx->save_for_backward(front.saved);
    ctx->saved_data["eps"] = options.eps;
    const ops::QkvHeads heads = ops::qkv_heads_(qkv, sizes, options);
    return {heads.q, heads.k, heads.v, x.detach()};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    TORCH_CHECK(!at::GradMode::is_enabled(), "a frozen layer in 8 bits has no second derivative");
    Saved saved(ctx);
    const FrontGradient front = FrontGradient::of(ctx, saved);
    const at::ArrayRef<at::Tensor> rest = saved.next(5);
    const ops::QkvHeadOptions options{.cos = rest[0],
                                      .sin = rest[1],
                                      .q_weight = rest[2],
                                      .k_weight = rest[3],
                                      .eps = ctx->saved_data["eps"].toDouble()};
    const ops::Fp8RowsBeside grad = ops::qkv_heads_backward_rows(grads[0], grads[1], grads[2], rest[4], options,
                                                                 front.factors(), front.product.is_adapted());
    variable_list out = front.backward(grad, grads[3]);
    out.resize(8);
    return out;
  }
};

struct RowsSwigluAdd : torch::autograd::Function<RowsSwigluAdd> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& scale,
                            const Masters& /*A_master*/, const Masters& /*B_master*/, const Masters& /*down_A_master*/,
                            const Masters& /*down_B_master*/, const AdaptedProduct* gate_up_proj,
                            const AdaptedProduct* down_proj, double eps) {
    Front front = Front::run(ctx, x, scale, eps, *gate_up_proj);
    const ops::Fp8RowsBeside act = ops::swiglu_rows(front.y, /*wide=*/down_proj->is_adapted());
    const AdaptedProduct::Result result = down_proj->forward(act, x.scalar_type(), matrix_of(x));
    down_proj->keep(ctx, "down");
    front.saved.push_back(front.y);
    const std::vector<at::Tensor> more = down_proj->saved(act.wide, result.u);
    front.saved.insert(front.saved.end(), more.begin(), more.end());
    ctx->save_for_backward(front.saved);
    return result.y.view(x.sizes());
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    TORCH_CHECK(!at::GradMode::is_enabled(), "a frozen layer in 8 bits has no second derivative");
    Saved saved(ctx);
    const FrontGradient front = FrontGradient::of(ctx, saved);
    const at::Tensor gate_up = saved.next();
    const AdaptedGradient down = AdaptedGradient::of(ctx, "down", saved.next(AdaptedProduct::kSaved));
    const ops::Fp8RowsBeside grad_out = ops::fp8_rows_beside(matrix_of(grads[0]), down.weight.weight8.scales);
    const at::Tensor grad_act = down.backward(grad_out, front.dtype(), /*needs_x=*/true);
    const ops::Fp8RowsBeside grad =
        ops::swiglu_backward_rows(grad_act, gate_up, front.factors(), front.product.is_adapted());
    variable_list out = front.backward(grad, grads[0]);
    out.resize(9);
    return out;
  }
};

Masters master_of(const at::Tensor& master) {
  return ops::optional_tensor(master);
}

}  // namespace

RowsHeads rows_qkv_heads(const at::Tensor& x, const RmsNorm& norm, const Linear& qkv_proj, const ops::QkvSizes& sizes,
                         const ops::QkvHeadOptions& options) {
  require(!at::GradMode::is_enabled() || !options.q_weight.defined() ||
              (!options.q_weight.requires_grad() && !options.k_weight.requires_grad()),
          ExitCode::unexpected, "heads with trained norms have no fused form in 8 bits; use rows_normed_linear()");
  const AdaptedProduct product = AdaptedProduct::of(qkv_proj);
  const variable_list out = RowsQkvHeads::apply(x, norm.scale(), master_of(product.A_master),
                                                master_of(product.B_master), &product, norm.eps(), sizes, options);
  return {{out[0], out[1], out[2]}, out[3]};
}

ops::NormedStream rows_normed_linear(const at::Tensor& x, const RmsNorm& norm, const Linear& linear) {
  const AdaptedProduct product = AdaptedProduct::of(linear);
  const variable_list out = RowsNormedLinear::apply(x, norm.scale(), master_of(product.A_master),
                                                    master_of(product.B_master), &product, norm.eps());
  return {out[0], out[1]};
}

at::Tensor rows_swiglu_add(const at::Tensor& x, const RmsNorm& norm, const Linear& gate_up_proj,
                           const Linear& down_proj) {
  const AdaptedProduct gate_up = AdaptedProduct::of(gate_up_proj), down = AdaptedProduct::of(down_proj);
  return RowsSwigluAdd::apply(x, norm.scale(), master_of(gate_up.A_master), master_of(gate_up.B_master),
                              master_of(down.A_master), master_of(down.B_master), &gate_up, &down, norm.eps());
}

}  // namespace hrm::nn
