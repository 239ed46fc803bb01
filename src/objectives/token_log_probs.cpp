#include "hrm/objectives/token_log_probs.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>

#include "hrm/ops/linear.h"
#include "hrm/ops/token_loss.h"
#include "objectives/chunked_logits.h"
#include "ops/common/accumulate_type.h"
#include "ops/common/optional_tensor.h"

namespace hrm::objectives {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct TokenLogProbsFunction : torch::autograd::Function<TokenLogProbsFunction> {
  // The master is an argument so that the node exists whenever it is trained.
  static variable_list forward(AutogradContext* ctx, const at::Tensor& hidden, const at::Tensor& /*master*/,
                               const at::Tensor& weight, const std::optional<at::Tensor>& grad_master,
                               const at::Tensor& ids, int64_t chunk, double temperature, bool with_entropy,
                               const nn::LmHead* head) {
    const at::ScalarType wide = ops::accumulate_type(hidden);
    const int64_t N = hidden.size(0);
    const at::Tensor log_p = at::empty({N}, hidden.options().dtype(wide));
    const at::Tensor entropy = at::empty({with_entropy ? N : 0}, log_p.options());
    ChunkedLogits(hidden, weight, chunk, temperature).each([&](int64_t first, const at::Tensor& logits) {
      const auto part = [&](const at::Tensor& t) { return t.narrow(0, first, logits.size(0)); };
      at::Tensor of_rows;
      part(log_p).copy_(head_loss_(*head, logits, part(ids), std::nullopt, with_entropy ? &of_rows : nullptr).neg_());
      if (with_entropy) part(entropy).copy_(of_rows);
    });
    if (with_entropy) entropy.masked_fill_(ids.eq(ops::kIgnoredToken), 0);
    ctx->save_for_backward({hidden, weight, ids});
    ctx->saved_data["of_hidden"] = hidden.requires_grad();
    ctx->saved_data["grad_master"] = grad_master.value_or(at::Tensor());
    ctx->saved_data["chunk"] = chunk;
    ctx->saved_data["temperature"] = temperature;
    ctx->saved_data["head"] = reinterpret_cast<int64_t>(head);
    ctx->mark_non_differentiable({entropy});
    return {log_p, entropy};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    TORCH_CHECK(!at::GradMode::is_enabled(), "token_log_probs has no second derivative");
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &hidden = saved[0], &weight = saved[1], &ids = saved[2];
    const at::Tensor grad_master = ctx->saved_data["grad_master"].toTensor();
    const double temperature = ctx->saved_data["temperature"].toDouble();
    const auto& head = *reinterpret_cast<const nn::LmHead*>(ctx->saved_data["head"].toInt());
    HeadGradients gradients(hidden, weight, ctx->saved_data["of_hidden"].toBool(), grad_master.defined());
    // The op computes the gradient of the cross-entropy, -log p.
    const at::Tensor largest = largest_weight(grads[0]);
    const at::Tensor relative = relative_weights(grads[0], largest, ops::accumulate_type(hidden)) / -temperature;
    ChunkedLogits(hidden, weight, ctx->saved_data["chunk"].toInt(), temperature)
        .each([&](int64_t first, const at::Tensor& logits) {
          const auto part = [&](const at::Tensor& t) { return t.narrow(0, first, logits.size(0)); };
          head_loss_(head, logits, part(ids), part(relative));
          gradients.add(first, logits);  // `logits` now holds their gradients
        });
    variable_list out(9);
    if (gradients.of_hidden().defined()) out[0] = (gradients.of_hidden() * largest).to(hidden.scalar_type());
    if (gradients.of_weight().defined()) grad_master.addcmul_(gradients.of_weight(), largest);
    return out;
  }
};

}  // namespace

TokenLogProbs token_log_probs(const at::Tensor& hidden, const nn::LmHead& head, const at::Tensor& ids,
                              double temperature, int64_t chunk, bool with_entropy) {
  const at::Tensor& weight = head.compute_weight();
  TORCH_CHECK(hidden.dim() >= 1 && hidden.sizes().slice(0, hidden.dim() - 1) == ids.sizes(),
              "token_log_probs: hidden (B, T, D) and ids (B, T) do not match, got ", hidden.sizes(), " and ",
              ids.sizes());
  const at::Tensor rows = head.mark(hidden).reshape({-1, hidden.size(-1)}), flat = ids.reshape({-1});
  check_head_input("token_log_probs", rows, weight, flat, chunk, temperature);
  const at::Tensor buffer = at::GradMode::is_enabled() ? ops::gradient_buffer(head.weight()) : at::Tensor();
  const variable_list out =
      TokenLogProbsFunction::apply(rows, head.weight(), weight.detach(), ops::optional_tensor(buffer), flat, chunk,
                                   temperature, with_entropy, &head);
  return {out[0].view(ids.sizes()), with_entropy ? out[1].view(ids.sizes()) : at::Tensor()};
}

}  // namespace hrm::objectives
