// grpo: advantages and policy losses with their gradients. polychromic_policy: the score function on policies so small
// that expectations are sums.

#include "hrm/objectives/diversity.h"
#include "hrm/objectives/policy_gradient.h"
#include "objectives/tiny_policy.h"
#include "parity/cases.h"

namespace hrm::parity {
namespace {

using hrm::config::value_of_name;
using test::TinyPolicy;

Tolerance tolerance_of(const Case& loaded) {
  return {loaded.json.at("tolerance").at("rtol"), loaded.json.at("tolerance").at("atol")};
}

void check_grpo(const Case& loaded) {
  const auto& config = loaded.json.at("config");
  const int64_t G = config.at("groups"), N = config.at("per_group");
  const Tolerance tolerance = tolerance_of(loaded);
  const at::Tensor rewards = loaded.at("in.rewards").view({G, N});
  for (const auto& [scale, want] : loaded.group("adv.")) {
    const auto got = objectives::group_advantages(rewards, {}, value_of_name<objectives::AdvantageScale>(scale),
                                                  config.at("adv_eps").get<double>());
    expect_close("advantages, " + scale, got.values.flatten(), want, tolerance);
    expect_close("frac_zero_std", got.frac_zero_std, loaded.at("frac_zero_std"), tolerance);
  }

  const at::Tensor mask = loaded.at("in.mask"), advantages = loaded.at("adv.group");
  objectives::PolicyOptions options{.epsilon_low = config.at("epsilon_low"),
                                    .epsilon_high = config.at("epsilon_high"),
                                    .max_tokens = config.at("max_len")};
  const auto run = [&](const at::Tensor& logp, const objectives::PolicyWindow& window) {
    return objectives::policy_loss(logp, loaded.at("in.logp_old"), loaded.at("in.logp_ref"), mask, advantages, options,
                                   window);
  };
  size_t losses = 0;
  for (const auto& item : loaded.tensors) {
    if (!item.first.ends_with(".loss")) continue;
    ++losses;
    const std::string name = item.first.substr(0, item.first.size() - 5);
    const size_t dot = name.find('.'), beta = name.find(".beta");
    options.aggregation = value_of_name<objectives::PolicyAggregation>(name.substr(0, dot));
    options.ratio = value_of_name<objectives::RatioLevel>(name.substr(dot + 1, beta - dot - 1));
    options.beta = std::stod(name.substr(beta + 5));
    const bool dapo = options.aggregation == objectives::PolicyAggregation::dapo;
    objectives::PolicyWindow window;
    if (dapo) window.tokens = at::full({}, config.at("window_tokens").get<double>(), at::kFloat);
    const at::Tensor logp = loaded.at("in.logp").detach().clone().requires_grad_();
    const auto got = run(logp, window);
    expect_close(item.first, got.loss, item.second, tolerance);
    got.loss.backward();
    expect_close(name + ".grad", logp.grad(), loaded.at(name + ".grad"), tolerance);
  }
  EXPECT_GT(losses, 0U);

  options.ratio = objectives::RatioLevel::token;
  const auto metrics = run(loaded.at("in.logp"), {});
  expect_close("clip_low", metrics.clip_low, loaded.at("clip_low"), tolerance);
  expect_close("clip_high", metrics.clip_high, loaded.at("clip_high"), tolerance);
  expect_close("kl_k3.mean", metrics.kl, loaded.at("kl_k3.mean"), tolerance);
}

void check_gradient(const Case& loaded, const std::string& name, const at::Tensor& got, Tolerance tolerance) {
  expect_close(name + ".grad0", got.select(1, 0), loaded.at(name + ".grad0"), tolerance);
  if (loaded.has(name + ".grad1")) {
    expect_close(name + ".grad1", got.narrow(1, 1, got.size(0)).t(), loaded.at(name + ".grad1"), tolerance);
  }
}

// The estimate, averaged over all groups of N answers, against the stored gradient of J.
void check_expectation(const Case& loaded, const std::string& policy, int64_t N, const TinyPolicy& tiny) {
  const std::string name = policy + ".n" + std::to_string(N);
  const at::Tensor y = tiny.groups(N);
  const auto diversity = test::pair_diversity(test::distances(loaded.at(policy + ".emb"), y));
  const at::Tensor p = tiny.group_probabilities(tiny.head->weight().detach(), y);
  expect_close(name + ".J", (p * diversity.totals).sum(), loaded.at(name + ".J"), tolerance_of(loaded));
  auto running = objectives::make_running_diversity(at::kCPU);
  running.add(at::full({}, 0.6), at::ones({}));
  const at::Tensor A =
      objectives::score_advantages(diversity, objectives::DiversityBaseline::leave_one_out, running) * p.unsqueeze(1);
  const at::Tensor weights = objectives::score_weights(A, tiny.mask(y), /*lambda=*/1, /*Z=*/1, at::ones({}));
  check_gradient(loaded, name, -tiny.score_gradient(y, weights), tolerance_of(loaded));
}

void check_sample(const Case& loaded, const std::string& policy, const TinyPolicy& tiny) {
  const std::string name = policy + ".sample";
  const Tolerance tolerance = tolerance_of(loaded);
  const at::Tensor y = loaded.at(name + ".y");
  const auto diversity = test::pair_diversity(test::distances(loaded.at(policy + ".emb"), y));
  expect_close(name + ".D", diversity.totals, loaded.at(name + ".D"), {tolerance.rtol, 1e-12});
  const at::Tensor A =
      objectives::score_advantages(diversity, objectives::DiversityBaseline::leave_one_out, /*running=*/{});
  expect_close(name + ".adv", A, loaded.at(name + ".adv"), tolerance);
  const at::Tensor weights = objectives::score_weights(A, tiny.mask(y), /*lambda=*/0.3), flat = y.reshape({-1});
  const auto got = objectives::score_loss(tiny.hidden(flat), *tiny.head, tiny.ids(flat), weights);
  expect_close(name + ".loss", got.loss, loaded.at(name + ".loss"), tolerance);
  check_gradient(loaded, name, tiny.score_gradient(y, weights), tolerance);
}

void check_polychromic_policy(const Case& loaded) {
  const TinyPolicy one(loaded.at("one.theta")), two(loaded.at("two.theta1"), loaded.at("two.theta2"));
  size_t expectations = 0;
  for (const auto& item : loaded.tensors) {
    if (!item.first.ends_with(".J")) continue;
    ++expectations;
    const std::string policy = item.first.substr(0, 3);
    check_expectation(loaded, policy, std::stoll(item.first.substr(5)), policy == "one" ? one : two);
  }
  EXPECT_GT(expectations, 0U);
  check_sample(loaded, "one", one);
  check_sample(loaded, "two", two);
}

const RegisterKind kGrpo("grpo", check_grpo);
const RegisterKind kPolychromicPolicy("polychromic_policy", check_polychromic_policy);

}  // namespace
}  // namespace hrm::parity
