// Sampling against a plain loop over the sorted tokens of a row.

#include "hrm/tasks/sampling.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "hrm/base/error.h"

namespace hrm::tasks {
namespace {

// What stays of a row, in float64, by the definition of each filter.
std::vector<double> plain_probabilities(const std::vector<float>& logits, const SamplingOptions& o) {
  const size_t V = logits.size();
  std::vector<double> p(V), scaled(V);
  for (size_t i = 0; i < V; ++i) scaled[i] = logits[i] / o.temperature;
  std::vector<size_t> order(V);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  const auto renormalise = [&] {
    const double sum = std::accumulate(p.begin(), p.end(), 0.0);
    for (double& value : p) value /= sum;
  };
  for (size_t i = 0; i < V; ++i) p[i] = std::exp(scaled[i] - scaled[order[0]]);
  if (o.top_k > 0) {
    const float least = logits[order[std::min(V, static_cast<size_t>(o.top_k)) - 1]];
    for (size_t i = 0; i < V; ++i) {
      if (logits[i] < least) p[i] = 0;
    }
  }
  renormalise();
  double before = 0;
  for (size_t place = 0; place < V; ++place) {
    const double mass = p[order[place]];
    if (place > 0 && before >= o.top_p) p[order[place]] = 0;
    before += mass;
  }
  renormalise();
  for (size_t i = 0; i < V; ++i) {
    if (p[i] < o.min_p * p[order[0]]) p[i] = 0;
  }
  renormalise();
  return p;
}

std::vector<float> row_of(const at::Tensor& t, int64_t row) {
  const at::Tensor data = t[row].contiguous();
  return {data.const_data_ptr<float>(), data.const_data_ptr<float>() + data.numel()};
}

const std::vector<SamplingOptions> kFilters = {
    {},
    {.temperature = 0.7},
    {.temperature = 1.3, .top_k = 5},
    {.top_k = 1},
    {.top_k = 97},
    {.top_k = 1000},
    {.top_p = 0.5},
    {.top_p = 0.99},
    {.top_p = 0},
    {.temperature = 0.8, .top_k = 20, .top_p = 0.9},
    {.min_p = 0.2},
    {.temperature = 1.5, .top_k = 40, .top_p = 0.8, .min_p = 0.1},
    {.temperature = 1e-6},
    {.temperature = 100},
};

TEST(Sampling, FiltersAreTheirDefinitions) {
  at::manual_seed(1);
  const at::Tensor logits = at::randn({12, 97}) * 3;
  for (const SamplingOptions& o : kFilters) {
    const at::Tensor got = filtered_probabilities(logits, o);
    for (int64_t row = 0; row < logits.size(0); ++row) {
      const std::vector<double> want = plain_probabilities(row_of(logits, row), o);
      const std::vector<float> values = row_of(got, row);
      for (size_t i = 0; i < want.size(); ++i) {
        EXPECT_NEAR(values[i], want[i], 1e-6)
            << "token " << i << " T " << o.temperature << " k " << o.top_k << " p " << o.top_p << " min " << o.min_p;
        EXPECT_TRUE(want[i] <= 1e-9 || values[i] > 0);
        EXPECT_TRUE(want[i] > 0 || values[i] == 0);
      }
    }
  }
}

// Logits of bfloat16 products are often equal.
TEST(Sampling, EqualLogits) {
  const at::Tensor level = at::zeros({1, 10});
  const auto kept = [&](const SamplingOptions& o) { return filtered_probabilities(level, o).gt(0); };
  EXPECT_TRUE(at::equal(kept({.top_k = 3}), at::ones({1, 10}, at::kBool))) << "all that equal the third";
  EXPECT_TRUE(at::equal(kept({.top_p = 0.35}), at::arange(10).lt(4).unsqueeze(0))) << "the lower ids";
  EXPECT_TRUE(at::equal(kept({.top_k = 3, .top_p = 0.35}), at::arange(10).lt(4).unsqueeze(0)));
  EXPECT_EQ(sample_tokens(level, {.temperature = 0}, {}).item<int64_t>(), 0);
  // Two greater ones in front of equals that are cut.
  const at::Tensor stairs = at::tensor({0.f, 2.f, 0.f, 2.f, 0.f}).view({1, 5});
  const double two = std::exp(2.0), all = 2 * two + 3;
  const at::Tensor some = filtered_probabilities(stairs, {.top_p = (2 * two + 1.5) / all}).gt(0);
  EXPECT_TRUE(at::equal(some, at::tensor({1, 1, 1, 1, 0}).to(at::kBool).view({1, 5})));
}

TEST(Sampling, ADrawChoosesByTheSumOfProbabilities) {
  at::manual_seed(2);
  const at::Tensor logits = at::randn({64, 53}) * 2, draws = at::rand({64}, at::kDouble);
  for (const SamplingOptions& o : kFilters) {
    const at::Tensor tokens = sample_tokens(logits, o, draws);
    for (int64_t row = 0; row < 64; ++row) {
      const std::vector<double> p = plain_probabilities(row_of(logits, row), o);
      const auto token = tokens[row].item<int64_t>();
      ASSERT_TRUE(token >= 0 && token < 53);
      const double below = std::accumulate(p.begin(), p.begin() + token, 0.0), draw = draws[row].item<double>();
      EXPECT_GT(p[static_cast<size_t>(token)], 0);
      EXPECT_GE(draw, below - 1e-6);
      EXPECT_LE(draw, below + p[static_cast<size_t>(token)] + 1e-6);
    }
  }
  const at::Tensor ends = at::tensor({0.0, 1 - 0x1.0p-53}, at::kDouble);
  const at::Tensor chosen = sample_tokens(at::zeros({2, 7}), {}, ends);
  EXPECT_EQ(chosen[0].item<int64_t>(), 0);
  EXPECT_EQ(chosen[1].item<int64_t>(), 6);
}

TEST(Sampling, ARowAloneGivesWhatItGivesAmongOthers) {
  at::manual_seed(3);
  const at::Tensor logits = at::randn({40, 201}), draws = at::rand({40}, at::kDouble);
  for (const SamplingOptions& o : kFilters) {
    const at::Tensor together = sample_tokens(logits, o, draws);
    for (int64_t row = 0; row < 40; ++row) {
      const at::Tensor alone = sample_tokens(logits.narrow(0, row, 1), o, draws.narrow(0, row, 1));
      EXPECT_EQ(alone.item<int64_t>(), together[row].item<int64_t>());
    }
  }
}

// Frequencies of 60,000 draws of one row: chi-square with 9 degrees of freedom is above 33.7 once in 10,000 times.
TEST(Sampling, FrequenciesAreTheProbabilities) {
  constexpr int64_t kDraws = 60000;
  at::manual_seed(4);
  const at::Tensor logits = at::randn({1, 10});
  const std::vector<double> values = sampling_draws(/*seed=*/5, /*key=*/6, kDraws);
  const at::Tensor draws = at::tensor(values, at::kDouble);
  const at::Tensor tokens = sample_tokens(logits.expand({kDraws, 10}), {.temperature = 1.2}, draws);
  const at::Tensor counts = at::bincount(tokens, {}, 10).to(at::kDouble);
  const at::Tensor want = at::softmax(logits[0].to(at::kDouble) / 1.2, 0) * kDraws;
  EXPECT_LT(((counts - want).square() / want).sum().item<double>(), 33.7);
}

TEST(Sampling, DrawsBelongToSeedKeyAndPosition) {
  const std::vector<double> draws = sampling_draws(1, 2, 100);
  std::vector<double> first = sampling_draws(1, 2, 10);
  EXPECT_TRUE(std::equal(first.begin(), first.end(), draws.begin()));
  EXPECT_NE(sampling_draws(1, 3, 10), first);
  EXPECT_NE(sampling_draws(2, 2, 10), first);
  for (const double draw : draws) EXPECT_TRUE(draw >= 0 && draw < 1);
  EXPECT_NEAR(std::accumulate(draws.begin(), draws.end(), 0.0) / 100, 0.5, 0.15);
}

TEST(Sampling, LogitsThatAreNotFinite) {
  at::Tensor logits = at::zeros({4, 6});
  logits[1][2] = std::numeric_limits<float>::quiet_NaN();
  logits[2][2] = std::numeric_limits<float>::infinity();
  logits[3].fill_(-std::numeric_limits<float>::infinity());
  logits[0][0] = -std::numeric_limits<float>::infinity();  // an id that is never chosen
  const at::Tensor draws = at::zeros({4}, at::kDouble);
  for (const SamplingOptions& o : {SamplingOptions{}, SamplingOptions{.temperature = 0}, SamplingOptions{.top_p = 0.5},
                                   SamplingOptions{.top_k = 2}}) {
    EXPECT_TRUE(at::equal(sample_tokens(logits, o, draws), at::tensor({1, -1, -1, -1}, at::kLong)));
  }
}

TEST(Sampling, WrongOptions) {
  for (const SamplingOptions& o :
       {SamplingOptions{.temperature = -1}, SamplingOptions{.temperature = 1e-9},
        SamplingOptions{.temperature = std::numeric_limits<double>::infinity()}, SamplingOptions{.top_k = -1},
        SamplingOptions{.top_p = 1.01}, SamplingOptions{.top_p = std::nan("")}, SamplingOptions{.min_p = -0.1}}) {
    try {
      check(o);
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::usage);
    }
  }
}

}  // namespace
}  // namespace hrm::tasks
