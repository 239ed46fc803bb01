#include "hrm/nn/moe.h"

#include <ATen/ATen.h>

#include <cmath>
#include <string_view>

#include "hrm/base/error.h"
#include "hrm/ops/linear.h"
#include "nn/moe_lora.h"
#include "ops/common/optional_tensor.h"

namespace hrm::nn {

MoeFeedForward::MoeFeedForward(int64_t width, const MoeOptions& options, at::Device device)
    : options_(options), width_(width) {
  require(options.experts >= 1 && options.experts <= 1024 && options.inner >= 1, ExitCode::usage,
          "a mixture of experts needs 1 to 1024 experts with an inner width of at least 1, not ", options.experts,
          " with ", options.inner);
  require(options.top_k >= 1 && options.top_k <= options.experts && options.top_k <= 32, ExitCode::usage,
          "top_k must be 1 to ", std::min<int64_t>(options.experts, 32), " with ", options.experts, " experts, not ",
          options.top_k);
  require(options.capacity_factor >= 0 && options.load_weight >= 0 && options.z_weight >= 0 && options.bias_rate >= 0 &&
              options.shared_experts >= 0 && options.jitter >= 0 && options.jitter < 1,
          ExitCode::usage,
          "weights, rates and counts of a mixture of experts must not be negative, and its jitter must be below 1");
  router_ = register_module("router", std::make_shared<Linear>(width, options.experts, device));
  const bool gated = options.activation == ops::ExpertActivation::swiglu;
  up_ = register_module(gated ? "gate_up" : "up", std::make_shared<Linear>(width, options.experts * up_rows(), device));
  down_ = register_module("down", std::make_shared<Linear>(options.inner, options.experts * width, device));
  if (options.dtype != at::kFloat) {
    for (const auto& linear : {up_, down_}) linear->hold_frozen(options.dtype);
  }
  if (options.shared_experts > 0) {
    const int64_t inner = options.shared_experts * options.inner;
    if (gated) {
      shared_ = register_module("shared", std::make_shared<SwigluFeedForward>(width, inner, device));
    } else {
      shared_ = register_module("shared", std::make_shared<GeluFeedForward>(width, inner, device));
    }
  }
  if (options.bias_rate > 0) {
    choice_bias_ = register_buffer("choice_bias", at::zeros({options.experts}, at::device(device).dtype(at::kFloat)));
  }
  if (options.jitter > 0) {
    jitter_step_ = register_buffer("jitter_step", at::zeros({}, at::device(device).dtype(at::kLong)));
  }
  stale_ = at::zeros({2}, at::kBool);
  counts_ = at::zeros({options.experts + 1}, at::device(device).dtype(at::kDouble));
}

int64_t MoeFeedForward::up_rows() const {
  return options_.activation == ops::ExpertActivation::swiglu ? 2 * options_.inner : options_.inner;
}

at::Tensor MoeFeedForward::router_input(const at::Tensor& x) const {
  if (!jitter_step_.defined() || !at::GradMode::is_enabled()) return x;
  return ops::moe_jitter(x, jitter_step_, options_.jitter, options_.jitter_seed);
}

at::Tensor MoeFeedForward::forward(const at::Tensor& x) {
  const int64_t experts = options_.experts, tokens = x.size(0), picks = tokens * options_.top_k;
  const auto bias = ops::optional_tensor(choice_bias_);
  const at::Tensor logits = ops::moe_router(router_input(x), router_->compute_weight(), router_->weight());
  const ops::MoeGate gate = ops::moe_gate(logits, options_.top_k, options_.score, options_.normalize, bias);
  at::Tensor ids = gate.ids;
  if (options_.capacity_factor > 0) {
    const double share = options_.capacity_factor * static_cast<double>(picks) / static_cast<double>(experts);
    ids = ops::moe_drop(ids, gate.weights, experts, static_cast<int64_t>(std::ceil(share)));
  }
  const ops::MoePlan plan = ops::moe_plan(ids, experts);

  // Each expert's matrix is a slice of the parameter's rows.
  const std::vector<int64_t> up{experts, up_rows(), width_}, down{experts, width_, options_.inner};
  const auto gradient = [](const Linear& linear, const std::vector<int64_t>& sizes) {
    const at::Tensor grad = ops::gradient_buffer(linear.weight());
    return grad.defined() ? std::optional<at::Tensor>(grad.view(sizes)) : std::nullopt;
  };
  at::Tensor y;
  if (up_->adapter() != nullptr || down_->adapter() != nullptr) {
    y = adapted_experts(x, gate.weights, plan, *up_, *down_);
  } else {
    y = ops::moe_experts(x, gate.weights, plan, up_->compute_weight().detach().view(up), up_->weight(),
                         down_->compute_weight().detach().view(down), down_->weight(), gradient(*up_, up),
                         gradient(*down_, down), stale_, options_.activation);
  }
  if (shared_) y = y + shared_->forward(x);
  if (!at::GradMode::is_enabled()) return y;

  at::Tensor wanted;
  if (options_.capacity_factor > 0) {
    const at::Tensor ones = at::ones({picks}, plan.counts.options());
    wanted = at::zeros_like(plan.counts).scatter_add_(0, gate.ids.view({-1}).to(at::kLong), ones);
  }
  const bool shares = options_.load_weight > 0 && options_.score == ops::MoeScore::sigmoid;
  const at::Tensor scores = shares ? gate.scores / gate.scores.sum(1, /*keepdim=*/true)
                                   : (options_.load_weight > 0 ? gate.scores : gate.scores.detach());
  const at::Tensor loss = ops::moe_load_loss_(scores, plan.counts, wanted, counts_);
  if (options_.load_weight > 0) losses_.push_back({"moe_load", loss, options_.load_weight});
  if (options_.z_weight > 0) {
    losses_.push_back({"moe_z", at::logsumexp(logits, {1}).square().mean(), options_.z_weight});
  }
  return y;
}

std::vector<AdaptableLinear> MoeFeedForward::adaptable_linears() {
  if (options_.activation != ops::ExpertActivation::swiglu || shared_) return {};
  const bool mixtral = options_.mixtral_names;
  AdaptableLinear up{.linear = up_, .parts = {}, .expert_parts = 2},
      down{.linear = down_, .parts = {}, .expert_parts = 1};
  for (int64_t e = 0; e < options_.experts; ++e) {
    const auto part = [&](const char* name) { return cat("experts.", e, ".", name); };
    up.parts.push_back({part(mixtral ? "w1" : "gate_proj"), options_.inner});
    up.parts.push_back({part(mixtral ? "w3" : "up_proj"), options_.inner});
    down.parts.push_back({part(mixtral ? "w2" : "down_proj"), width_});
  }
  return {up, down};
}

std::string MoeFeedForward::adapted_path(const std::string& path) const {
  constexpr std::string_view kOurs = "mlp";
  if (!options_.mixtral_names || !path.ends_with(kOurs)) return path;
  return path.substr(0, path.size() - kOurs.size()) + "block_sparse_moe";
}

std::vector<AuxiliaryLoss> MoeFeedForward::take_auxiliary_losses() {
  return std::exchange(losses_, {});
}

std::vector<StaleGradient> MoeFeedForward::stale_gradients() {
  return {{up_->weight(), stale_[0]}, {down_->weight(), stale_[1]}};
}

MoeLoad MoeFeedForward::load() const {
  const at::Tensor loads = at::empty({1, 3}, counts_.options());
  ops::moe_loads_(loads, counts_);
  return {loads[0][0], loads[0][1], loads[0][2]};
}

void MoeFeedForward::balance(const at::Tensor& skip) {
  const at::NoGradGuard no_grad;
  if (choice_bias_.defined()) {
    const at::Tensor loads = counts_.narrow(0, 0, options_.experts);
    const at::Tensor move = at::sign(loads.mean() - loads).mul_(options_.bias_rate);
    choice_bias_.add_(at::where(skip.eq(0), move, at::zeros_like(move)));
  }
  if (jitter_step_.defined()) jitter_step_.add_(1);
  counts_.zero_();
}

}  // namespace hrm::nn
