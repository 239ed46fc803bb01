// losses: per-token cross-entropies with gradients, and the ACT loss head on given outputs. trunc_normal: initial
// values.

#include <cmath>

#include "hrm/nn/init.h"
#include "hrm/objectives/act.h"
#include "parity/cases.h"

namespace hrm::parity {
namespace {

using objectives::LossKind;
using objectives::LossPrecision;

constexpr Tolerance kDouble{.rtol = 1e-12, .atol = 0};
constexpr Tolerance kFloat{.rtol = 1e-5, .atol = 1e-6};

void check_token_losses(const Case& loaded, const std::string& group) {
  const at::Tensor labels = loaded.at(group + ".labels").to(device());
  const at::Tensor weight = loaded.at(group + ".weight").to(device());
  const auto run = [&](const char* name, LossKind kind, LossPrecision precision, Tolerance tolerance) {
    const std::string what = group + "." + name;
    const at::Tensor logits = loaded.at(group + ".logits").to(device()).detach().clone().requires_grad_();
    const at::Tensor loss = objectives::cross_entropy(logits, labels, kind, precision);
    expect_close(what + ".loss", loss, loaded.at(what + ".loss"), tolerance);
    (loss * weight).sum().backward();
    expect_close(what + ".grad", logits.grad(), loaded.at(what + ".grad"), kFloat);
    const at::Tensor rounded = logits.detach().to(at::kBFloat16);
    expect_close(what + ".loss_bf16_logits", objectives::cross_entropy(rounded, labels, kind, precision),
                 loaded.at(what + ".loss_bf16_logits"), tolerance);
    return loss.scalar_type();
  };
  EXPECT_EQ(run("stablemax", LossKind::stablemax, LossPrecision::f64, kDouble), at::kDouble);
  EXPECT_EQ(run("stablemax", LossKind::stablemax, LossPrecision::f32, kFloat), at::kFloat);
  EXPECT_EQ(run("softmax", LossKind::softmax, LossPrecision::f32, kFloat), at::kFloat);
  expect_close(group + ".log_stablemax",
               objectives::log_stablemax(loaded.at(group + ".logits").to(device()), LossPrecision::f64),
               loaded.at(group + ".log_stablemax"), kDouble);
}

void check_head(const Case& loaded, const std::string& head, const nlohmann::json& config) {
  const auto leaf = [&](const char* name) {
    return loaded.at(head + ".in." + name).to(device()).detach().clone().requires_grad_();
  };
  const models::SegmentOutput output{
      .carry = {}, .logits = leaf("logits"), .q_halt = leaf("q_halt"), .q_continue = leaf("q_continue")};
  objectives::ActState state;
  state.labels = loaded.at(head + ".in.labels").to(device());
  state.halted = loaded.at(head + ".in.halted").to(device());
  state.steps = loaded.at(head + ".in.steps").to(device());
  std::optional<at::Tensor> target;
  if (config.at("q_continue_loss").get<bool>()) target = loaded.at(head + ".in.target_q_continue").to(device());
  const bool stablemax = config.at("loss_type") == "stablemax_cross_entropy";
  const objectives::ActLoss got = objectives::act_loss(
      output, state, target, stablemax ? LossKind::stablemax : LossKind::softmax, LossPrecision::f64);
  // The Q terms are float32 sums, whatever the type of the total.
  expect_close(head + ".loss", got.loss, loaded.at(head + ".loss"), kFloat);
  for (size_t i = 0; i < objectives::act_metric_names().size(); ++i) {
    const std::string name = head + ".metric." + objectives::act_metric_names()[i];
    if (!loaded.has(name)) continue;
    const bool exact = stablemax && name.ends_with(".lm_loss");
    expect_close(name, got.metrics[static_cast<int64_t>(i)], loaded.at(name), exact ? kDouble : kFloat);
  }
  for (const char* count : {"count", "exact_accuracy", "q_halt_accuracy", "steps"}) {
    const auto& names = objectives::act_metric_names();
    const auto index = std::find(names.begin(), names.end(), count) - names.begin();
    expect_equal(head + ".metric." + count, got.metrics[index], loaded.at(head + ".metric." + count));
  }
  got.loss.backward();
  for (const auto& [name, want] : loaded.group(head + ".grad.")) {
    const at::Tensor& input = name == "logits" ? output.logits : name == "q_halt" ? output.q_halt : output.q_continue;
    expect_close(head + ".grad." + name, input.grad(), want, kFloat);
  }
}

void check_losses(const Case& loaded) {
  int groups = 0;
  for (const auto& item : loaded.tensors) {
    const std::string suffix = ".log_stablemax";
    if (!item.first.ends_with(suffix)) continue;
    check_token_losses(loaded, item.first.substr(0, item.first.size() - suffix.size()));
    ++groups;
  }
  EXPECT_GT(groups, 0);
  int heads = 0;
  for (const auto& [key, value] : loaded.json.at("config").items()) {
    if (!key.starts_with("head")) continue;
    check_head(loaded, key, value);
    ++heads;
  }
  EXPECT_GT(heads, 0);
}

void check_trunc_normal(const Case& loaded) {
  for (const auto& [map, stats] : loaded.json.at("statistics").items()) {
    const double std = stats.at("std"), bound = stats.at("bound");
    const at::Tensor u = loaded.at(map + ".u");
    expect_close(map, nn::trunc_normal_from_uniform(u, std), loaded.at(map + ".x"), {1e-5, 1e-6});
    const int64_t n = stats.at("n");
    const at::Tensor drawn = at::empty({n}, at::kFloat);
    nn::trunc_normal_(drawn, std, /*seed=*/1, map);
    const at::Tensor wide = drawn.to(at::kDouble);
    const double root = std::sqrt(static_cast<double>(n));
    expect_close(map + " mean", wide.mean().item<double>(), 0, {0, 5 * std / root});
    expect_close(map + " std", wide.std().item<double>(), std, {5 / root, 0});
    EXPECT_LE(wide.abs().max().item<double>(), bound * (1 + 1e-6)) << map;
    // The cut is reached, not only respected.
    EXPECT_GT(wide.abs().max().item<double>(), bound * 0.99) << map;
  }
  expect_equal("std 0", nn::trunc_normal_from_uniform(at::full({3}, 0.5), 0), at::zeros({3}));
}

const RegisterKind kLosses("losses", check_losses);
const RegisterKind kTruncNormal("trunc_normal", check_trunc_normal);

}  // namespace
}  // namespace hrm::parity
