#include "hrm/objectives/diversity.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "hrm/base/error.h"
#include "hrm/objectives/chunked_cross_entropy.h"
#include "ops/common/accumulate_type.h"

namespace hrm::objectives {
namespace {

constexpr int64_t kMostSubsets = 100'000;
constexpr double kLeastSpread = 1e-4;

// Binomial coefficient, capped at kMostSubsets + 1.
int64_t subsets_of(int64_t N, int64_t n) {
  int64_t count = 1;
  for (int64_t i = 1; i <= std::min(n, N - n); ++i) {
    count = count * (N - i + 1) / i;
    if (count > kMostSubsets) return kMostSubsets + 1;
  }
  return count;
}

void check_members(const char* name, const at::Tensor& members, int64_t N) {
  TORCH_CHECK(members.dim() == 2 && members.scalar_type() == at::kBool && members.size(0) > 0 && members.size(1) == N,
              name, ": members must be bool (S, N = ", N, "), got ", members.scalar_type(), " ", members.sizes());
}

}  // namespace

RunningDiversity make_running_diversity(at::Device device) {
  return {at::zeros({2}, at::device(device).dtype(at::kDouble))};
}

at::Tensor RunningDiversity::mean() const {
  // Without groups the sum is 0 too.
  return state[0] / state[1].clamp_min(std::numeric_limits<double>::min());
}

void RunningDiversity::add(const at::Tensor& sum, const at::Tensor& groups, double decay) {
  const at::NoGradGuard no_grad;
  state.mul_(decay).add_(at::stack({sum.to(at::kDouble), groups.to(at::kDouble)}));
}

at::Tensor score_advantages(const GroupDiversity& diversity, DiversityBaseline baseline,
                            const RunningDiversity& running) {
  const at::Tensor &totals = diversity.totals, &loo = diversity.loo;
  TORCH_CHECK(totals.dim() == 1 && loo.dim() == 2 && loo.size(0) == totals.size(0),
              "score_advantages: totals (G) and loo (G, N) do not match, got ", totals.sizes(), " and ", loo.sizes());
  const at::NoGradGuard no_grad;
  const at::Tensor D = totals.unsqueeze(1).expand_as(loo);
  if (baseline == DiversityBaseline::none) return D.clone();
  if (baseline == DiversityBaseline::leave_one_out && loo.size(1) != 2) return D - loo;
  TORCH_CHECK(running.state.defined(),
              "score_advantages: the baseline needs a running mean of the diversity; pass `running`");
  return D - running.mean().to(D.scalar_type());
}

at::Tensor subset_members(int64_t N, int64_t n) {
  require(1 <= n && n < N, ExitCode::usage, "a set of ", n, " among ", N,
          " completions leaves none outside to compare with; its size must be 1 to ", N - 1);
  const int64_t count = subsets_of(N, n);
  require(count <= kMostSubsets, ExitCode::usage, "there are more than ", kMostSubsets, " sets of ", n, " among ", N,
          " completions; use smaller sets or fewer completions");
  const at::Tensor members = at::ones({count, N}, at::kBool);
  auto* row = members.mutable_data_ptr<bool>();
  // Positions of the completions left out, counted up like digits.
  std::vector<int64_t> out(static_cast<size_t>(N - n));
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<int64_t>(i);
  for (int64_t s = 0; s < count; ++s, row += N) {
    for (const int64_t answer : out) row[answer] = false;
    size_t last = out.size();
    while (last > 0 && out[last - 1] == N - static_cast<int64_t>(out.size() - (last - 1))) --last;
    if (last == 0) break;
    ++out[last - 1];
    for (size_t i = last; i < out.size(); ++i) out[i] = out[i - 1] + 1;
  }
  return members;
}

at::Tensor subset_diversity(const at::Tensor& distances, const at::Tensor& members) {
  TORCH_CHECK(distances.dim() == 3 && distances.size(1) == distances.size(2),
              "subset_diversity: distances must be (G, N, N), got ", distances.sizes());
  check_members("subset_diversity", members, distances.size(1));
  const at::NoGradGuard no_grad;
  const at::Tensor m = members.to(distances.options());  // (S, N)
  const at::Tensor between = distances - at::diag_embed(distances.diagonal(0, 1, 2));
  const at::Tensor sums = (at::matmul(m, between) * m).sum(-1);  // counts each pair twice
  const at::Tensor size = m.sum(1);
  return sums / (size * (size - 1)).clamp_min(1);
}

at::Tensor set_values(const at::Tensor& subset_totals, const at::Tensor& rewards, const at::Tensor& members,
                      SetMode mode) {
  TORCH_CHECK(subset_totals.dim() == 2 && members.dim() == 2 && subset_totals.size(1) == members.size(0),
              "set_values: subset_totals (G, S) and members (S, N) do not match, got ", subset_totals.sizes(), " and ",
              members.sizes());
  const at::NoGradGuard no_grad;
  if (mode == SetMode::diversity) return subset_totals;
  TORCH_CHECK(rewards.defined() && rewards.dim() == 2 && rewards.size(0) == subset_totals.size(0),
              "set_values: rewards must be (G, N) for subsets ", subset_totals.sizes());
  check_members("set_values", members, rewards.size(1));
  const at::Tensor m = members.to(subset_totals.options());
  return at::matmul(rewards.to(m.scalar_type()), m.t()) / m.sum(1) * subset_totals;
}

at::Tensor marginal_advantages(const at::Tensor& values, const at::Tensor& members) {
  TORCH_CHECK(values.dim() == 2 && members.dim() == 2 && values.size(1) == members.size(0),
              "marginal_advantages: values (G, S) and members (S, N) do not match, got ", values.sizes(), " and ",
              members.sizes());
  check_members("marginal_advantages", members, members.size(1));
  const at::NoGradGuard no_grad;
  const at::Tensor in = members.to(values.options()), out = 1 - in;
  const auto mean_over = [&](const at::Tensor& m) { return at::matmul(values, m) / m.sum(0); };
  return (mean_over(in) - mean_over(out)) * in.mean();  // n / N of all elements are 1
}

at::Tensor shape_advantages(const at::Tensor& advantages, const AdvantageShaping& shaping, const at::Tensor& barred,
                            const at::Tensor& mean_square) {
  require(shaping.clip >= 0, ExitCode::usage, "the bound on advantages must be at least 0, not ", shaping.clip);
  TORCH_CHECK(advantages.dim() == 2 && (!barred.defined() || barred.sizes() == advantages.sizes()),
              "shape_advantages: advantages and barred must both be (G, N), got ", advantages.sizes(), " and ",
              barred.defined() ? barred.sizes() : at::IntArrayRef{});
  const at::NoGradGuard no_grad;
  at::Tensor A = advantages;
  if (shaping.normalize && A.numel() > 0) {
    const at::Tensor spread = (mean_square.defined() ? mean_square.to(A.options()) : A.square().mean()).sqrt();
    A = A / (spread + kLeastSpread);
  }
  if (shaping.clip > 0) A = A.clamp(-shaping.clip, shaping.clip);
  if (barred.defined()) A = at::where(barred.to(at::kBool), A.clamp_max(0), A);
  return A;
}

at::Tensor score_weights(const at::Tensor& advantages, const at::Tensor& mask, double lambda, double Z,
                         const at::Tensor& groups) {
  TORCH_CHECK(advantages.dim() == 2 && mask.dim() == 2 && mask.size(0) == advantages.numel(),
              "score_weights: mask must be (G N, T) for advantages (G, N), got ", mask.sizes(), " and ",
              advantages.sizes());
  require(Z > 0, ExitCode::usage, "the divisor Z of log-probabilities must be above 0, not ", Z);
  const at::NoGradGuard no_grad;
  at::Tensor per_row = advantages.reshape({-1, 1}) * (lambda / Z);
  per_row = groups.defined() ? per_row / groups.to(per_row.scalar_type())
                             : per_row / static_cast<double>(std::max<int64_t>(advantages.size(0), 1));
  return per_row * mask.to(at::kBool);
}

ScoreLoss score_loss(const at::Tensor& hidden, const nn::LmHead& head, const at::Tensor& ids, const at::Tensor& weights,
                     double temperature, int64_t chunk) {
  TORCH_CHECK(hidden.dim() == 3 && hidden.sizes().slice(0, 2) == ids.sizes() && ids.sizes() == weights.sizes(),
              "score_loss: hidden (B, T, D), ids (B, T) and weights (B, T) do not match, got ", hidden.sizes(), ", ",
              ids.sizes(), " and ", weights.sizes());
  const at::ScalarType type = ops::accumulate_type(hidden);
  const ChunkedCrossEntropy ce = chunked_cross_entropy(hidden.reshape({-1, hidden.size(2)}), head, ids.reshape({-1}),
                                                       weights.reshape({-1}).to(type), chunk, temperature);
  return {ce.loss, ce.per_token.neg().view(ids.sizes())};
}

at::Tensor constant_term(const at::Tensor& totals, double lambda, const at::Tensor& groups) {
  const at::NoGradGuard no_grad;
  return (groups.defined() ? totals.sum() / groups : totals.mean()) * -lambda;
}

}  // namespace hrm::objectives
