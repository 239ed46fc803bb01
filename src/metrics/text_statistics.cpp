#include "hrm/metrics/text_statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "hrm/base/error.h"
#include "hrm/base/philox.h"

namespace hrm::metrics {
namespace {

void require_sample(std::span<const double> values, size_t least = 1) {
  require(values.size() >= least, ExitCode::data, "a sample has ", values.size(), " values: it needs at least ", least);
  for (size_t i = 0; i < values.size(); ++i)
    require(std::isfinite(values[i]), ExitCode::data, "value ", i, " of a sample is not finite");
}

double mean_of(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double quantile(const std::vector<double>& sorted, double share) {
  const double at = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(at);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (at - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

double squares(std::span<const double> values) {
  const double mean = mean_of(values);
  double sum = 0;
  for (const double value : values) sum += (value - mean) * (value - mean);
  return sum;
}

}  // namespace

double pass_at_k(int64_t n, int64_t c, int64_t k) {
  require(c >= 0 && c <= n && k >= 1 && k <= n, ExitCode::usage, "pass@", k, " of ", c, " successes among ", n,
          " samples: it needs 0 <= successes <= samples and 1 <= k <= samples");
  if (n - c < k) return 1;
  double fail_all = 1;
  for (int64_t i = n - c + 1; i <= n; ++i) fail_all *= 1 - static_cast<double>(k) / static_cast<double>(i);
  return 1 - fail_all;
}

Interval bootstrap_mean(std::span<const double> values, uint64_t seed, int resamples, double level) {
  require_sample(values);
  require(resamples >= 1 && level > 0 && level < 1, ExitCode::usage, "a bootstrap of ", resamples,
          " resamples at level ", level, ": it needs at least one resample and a level between 0 and 1");
  std::vector<double> means(static_cast<size_t>(resamples));
  for (size_t r = 0; r < means.size(); ++r) {
    CounterRng rng(seed, Stream::subset, r);
    double sum = 0;
    for (size_t i = 0; i < values.size(); ++i) sum += values[rng.below(static_cast<uint32_t>(values.size()))];
    means[r] = sum / static_cast<double>(values.size());
  }
  std::sort(means.begin(), means.end());
  return {mean_of(values), quantile(means, (1 - level) / 2), quantile(means, (1 + level) / 2)};
}

Interval bootstrap_paired(std::span<const double> a, std::span<const double> b, uint64_t seed, int resamples,
                          double level) {
  require(a.size() == b.size(), ExitCode::data, "paired samples have ", a.size(), " and ", b.size(),
          " values: they must have equally many");
  std::vector<double> differences;
  for (size_t i = 0; i < a.size(); ++i) differences.push_back(a[i] - b[i]);
  return bootstrap_mean(differences, seed, resamples, level);
}

MannWhitney mann_whitney(std::span<const double> a, std::span<const double> b) {
  require_sample(a);
  require_sample(b);
  std::vector<double> all(a.begin(), a.end());
  all.insert(all.end(), b.begin(), b.end());
  std::sort(all.begin(), all.end());
  std::vector<double> others(b.begin(), b.end());
  std::sort(others.begin(), others.end());
  MannWhitney out;
  for (const double value : a) {
    const auto [low, high] = std::equal_range(others.begin(), others.end(), value);
    out.u += static_cast<double>(low - others.begin()) + 0.5 * static_cast<double>(high - low);
  }
  double ties = 0;
  for (auto at = all.begin(); at != all.end();) {
    const auto end = std::upper_bound(at, all.end(), *at);
    const auto t = static_cast<double>(end - at);
    ties += t * t * t - t;
    at = end;
  }
  const auto n = static_cast<double>(all.size());
  const double pairs = static_cast<double>(a.size()) * static_cast<double>(b.size());
  const double deviation = std::sqrt(std::max(0.0, pairs / 12 * (n + 1 - ties / (n * (n - 1)))));
  if (all.front() == all.back()) return out;
  const double off = out.u - pairs / 2;
  out.z = off / deviation;
  out.p = std::min(1.0, std::erfc(std::max(0.0, std::abs(off) - 0.5) / deviation / std::sqrt(2.0)));
  return out;
}

double cohens_d(std::span<const double> a, std::span<const double> b) {
  require_sample(a, 2);
  require_sample(b, 2);
  const double difference = mean_of(a) - mean_of(b);
  const double deviation = std::sqrt((squares(a) + squares(b)) / static_cast<double>(a.size() + b.size() - 2));
  if (deviation > 0) return difference / deviation;
  return difference == 0 ? 0 : std::copysign(std::numeric_limits<double>::infinity(), difference);
}

double cliffs_delta(std::span<const double> a, std::span<const double> b) {
  return 2 * mann_whitney(a, b).u / (static_cast<double>(a.size()) * static_cast<double>(b.size())) - 1;
}

}  // namespace hrm::metrics
