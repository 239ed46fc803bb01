#include "hrm/objectives/chunked_cross_entropy.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <utility>

#include "hrm/ops/linear.h"
#include "hrm/ops/stale_gradient.h"
#include "objectives/chunked_logits.h"
#include "ops/common/accumulate_type.h"
#include "ops/common/optional_tensor.h"

namespace hrm::objectives {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The master is an argument so that the node exists whenever it is trained. The gradients are those of the sum of
// `relative` * cross-entropy, with relative = weights / largest weight, so that float16 can represent them. The
// backward pass multiplies by the largest weight.
struct ChunkedCrossEntropyFunction : torch::autograd::Function<ChunkedCrossEntropyFunction> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& hidden, const at::Tensor& /*master*/,
                               const at::Tensor& weight, const std::optional<at::Tensor>& grad_master,
                               const at::Tensor& labels, const at::Tensor& weights, int64_t chunk, double temperature,
                               const nn::LmHead* head) {
    const at::ScalarType wide = ops::accumulate_type(hidden);
    const at::Tensor per_token = at::empty({hidden.size(0)}, hidden.options().dtype(wide));
    const at::Tensor largest = largest_weight(weights);
    at::Tensor relative = relative_weights(weights, largest, wide);
    if (temperature != 1) relative = relative / temperature;  // from the logits' gradient to that of the GEMM's output
    HeadGradients gradients(hidden, weight, hidden.requires_grad(), grad_master.has_value());
    ChunkedLogits(hidden, weight, chunk, temperature).each([&](int64_t first, const at::Tensor& logits) {
      const auto part = [&](const at::Tensor& t) { return t.narrow(0, first, logits.size(0)); };
      part(per_token).copy_(
          head_loss_(*head, logits, part(labels), gradients.wanted() ? std::optional(part(relative)) : std::nullopt));
      if (gradients.wanted()) gradients.add(first, logits);  // `logits` now holds their gradients
    });
    ctx->saved_data["grad_hidden"] = gradients.of_hidden();
    ctx->saved_data["grad_weight"] = gradients.of_weight();
    ctx->saved_data["grad_master"] = grad_master.value_or(at::Tensor());
    ctx->saved_data["largest"] = largest;
    ctx->mark_non_differentiable({per_token});
    return {(per_token * weights).sum(), per_token};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    TORCH_CHECK(!at::GradMode::is_enabled(), "chunked_cross_entropy has no second derivative");
    TORCH_CHECK(!ctx->saved_data.empty(), "chunked_cross_entropy has only one backward pass");
    // The loss may outlive the rest of the pass, but of the weight's size is only what is needed.
    const auto saved = std::exchange(ctx->saved_data, {});
    const auto kept = [&](const char* name) { return saved.at(name).toTensor(); };
    const at::Tensor scale = grads[0] * kept("largest"), weight = kept("grad_weight"), hidden = kept("grad_hidden");
    if (weight.defined()) {
      at::Tensor sum = kept("grad_master");
      if (ops::take_stale(sum)) {
        at::mul_out(sum, weight, scale);
      } else {
        sum.addcmul_(weight, scale);
      }
    }
    variable_list out(9);
    if (hidden.defined()) out[0] = hidden.mul_(scale);  // which nobody else has
    return out;
  }
};

}  // namespace

ChunkedCrossEntropy chunked_cross_entropy(const at::Tensor& hidden, const nn::LmHead& head, const at::Tensor& labels,
                                          const at::Tensor& weights, int64_t chunk, double temperature) {
  const at::Tensor& weight = head.compute_weight();
  check_head_input("chunked_cross_entropy", hidden, weight, labels, chunk, temperature);
  TORCH_CHECK(labels.sizes() == weights.sizes(), "chunked_cross_entropy: labels and weights must both be (N), got ",
              labels.sizes(), " and ", weights.sizes());
  const at::Tensor buffer = at::GradMode::is_enabled() ? ops::stale_gradient_buffer(head.weight()) : at::Tensor();
  const variable_list out =
      ChunkedCrossEntropyFunction::apply(head.mark(hidden), head.weight(), weight.detach(),
                                         ops::optional_tensor(buffer), labels, weights, chunk, temperature, &head);
  return {out[0], out[1]};
}

}  // namespace hrm::objectives
