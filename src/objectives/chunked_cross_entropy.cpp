#include "hrm/objectives/chunked_cross_entropy.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>

#include "hrm/ops/linear.h"
#include "hrm/ops/linear_weight_gradient.h"
#include "hrm/ops/softmax_loss.h"

namespace hrm::objectives {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::ScalarType wide_type(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// A multiple of 128 bytes from one row of the logits to the next, so that products read them by whole words whatever
// the vocabulary is.
constexpr int64_t kPitch = 64;

// The master is an argument so that the node exists whenever it trains. The gradients are those of the sum of
// `relative` * cross-entropy, relative = weights / largest weight: numbers of a size that float16 can hold. The
// backward pass multiplies by the largest weight.
struct Function : torch::autograd::Function<Function> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& hidden, const at::Tensor& /*master*/,
                               const at::Tensor& weight, const std::optional<at::Tensor>& grad_master,
                               const at::Tensor& labels, const at::Tensor& weights, int64_t chunk) {
    const int64_t N = hidden.size(0);
    const bool needs_hidden = hidden.requires_grad();
    const at::ScalarType wide = wide_type(hidden);
    const int64_t V = weight.size(0), rows = std::min(chunk, N);
    const at::Tensor per_token = at::empty({N}, hidden.options().dtype(wide));
    const at::Tensor largest = N > 0 ? weights.max() : weights.sum();
    const at::Tensor relative = (weights / largest.clamp_min(1e-30)).to(wide);
    const at::Tensor buffer = at::empty({rows, (V + kPitch - 1) / kPitch * kPitch}, hidden.options());
    at::Tensor grad_hidden, grad_weight;
    if (needs_hidden) grad_hidden = at::empty_like(hidden, at::MemoryFormat::Contiguous);
    if (grad_master) {
      const auto options = weight.options().dtype(wide);
      grad_weight = N > 0 ? at::empty(weight.sizes(), options) : at::zeros(weight.sizes(), options);
    }
    for (int64_t first = 0; first < N; first += chunk) {
      const int64_t count = std::min(chunk, N - first);
      const auto part = [&](const at::Tensor& t) { return t.narrow(0, first, count); };
      const at::Tensor logits = buffer.narrow(0, 0, count).narrow(1, 0, V);
      ops::linear_out(logits, part(hidden), weight);
      const bool needs_gradient = needs_hidden || grad_weight.defined();
      part(per_token).copy_(
          ops::softmax_loss_(logits, part(labels), needs_gradient ? std::optional(part(relative)) : std::nullopt));
      // From here on they are the logits' gradients.
      if (needs_hidden) ops::linear_out(part(grad_hidden), logits, weight.t());
      if (grad_weight.defined()) {
        const auto put = first == 0 ? &ops::linear_weight_gradient_ : &ops::linear_accumulate_;
        put(grad_weight, logits, part(hidden));
      }
    }
    ctx->saved_data["grad_hidden"] = grad_hidden;
    ctx->saved_data["grad_weight"] = grad_weight;
    ctx->saved_data["grad_master"] = grad_master.value_or(at::Tensor());
    ctx->saved_data["largest"] = largest;
    ctx->mark_non_differentiable({per_token});
    return {(per_token * weights).sum(), per_token};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    TORCH_CHECK(!at::GradMode::is_enabled(), "chunked_cross_entropy has no second derivative");
    const auto kept = [&](const char* name) { return ctx->saved_data[name].toTensor(); };
    const at::Tensor scale = grads[0] * kept("largest");
    variable_list out(7);
    if (const at::Tensor grad = kept("grad_hidden"); grad.defined()) {
      out[0] = (grad * scale).to(grad.scalar_type());
    }
    if (const at::Tensor grad = kept("grad_weight"); grad.defined()) kept("grad_master").addcmul_(grad, scale);
    return out;
  }
};

}  // namespace

ChunkedCrossEntropy chunked_cross_entropy(const at::Tensor& hidden, const nn::LmHead& head, const at::Tensor& labels,
                                          const at::Tensor& weights, int64_t chunk) {
  const at::Tensor& weight = head.compute_weight();
  TORCH_CHECK(hidden.dim() == 2 && hidden.size(1) == weight.size(1) && hidden.scalar_type() == weight.scalar_type(),
              "chunked_cross_entropy: hidden (N, D) and the head's weight (V, D) must have one D and one dtype, got ",
              hidden.sizes(), " ", hidden.scalar_type(), " and ", weight.sizes(), " ", weight.scalar_type());
  TORCH_CHECK(labels.dim() == 1 && labels.sizes() == weights.sizes() && labels.size(0) == hidden.size(0),
              "chunked_cross_entropy: labels and weights must be (N) where hidden is (N, D), got ", labels.sizes(),
              " and ", weights.sizes(), " for ", hidden.sizes());
  TORCH_CHECK(chunk > 0, "chunked_cross_entropy: chunk must be positive, got ", chunk);
  const at::Tensor buffer = at::GradMode::is_enabled() ? ops::gradient_buffer(head.weight()) : at::Tensor();
  const variable_list out =
      Function::apply(hidden, head.weight(), weight.detach(), buffer.defined() ? std::optional(buffer) : std::nullopt,
                      labels, weights, chunk);
  return {out[0], out[1]};
}

}  // namespace hrm::objectives
