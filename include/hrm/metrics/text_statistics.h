#pragma once
// Statistics of evaluations: samples that succeed, intervals, and differences between two groups. All in double; an
// empty sample, or one that holds what is no number, throws Error(data). No torch here.

#include <cstdint>
#include <span>

namespace hrm::metrics {

// The unbiased estimate 1 - C(n - c, k) / C(n, k) for c successes among n samples (Chen et al., 2021, arXiv
// 2107.03374), as 1 - prod_{i = n-c+1..n} (1 - k / i). Error(usage) unless 0 <= c <= n and 1 <= k <= n.
double pass_at_k(int64_t n, int64_t c, int64_t k);

struct Interval {
  double mean = 0, low = 0, high = 0;
};
// Percentile bootstrap (Efron, 1979): the (1 -+ level) / 2 quantiles, interpolated linearly, of the means of this many
// resamples. The draws depend on the seed alone. Error(usage) unless resamples >= 1 and 0 < level < 1.
Interval bootstrap_mean(std::span<const double> values, uint64_t seed, int resamples = 10000, double level = 0.95);
// Of the mean of a[i] - b[i], resampling the pairs. Error(data) where the sizes differ.
Interval bootstrap_paired(std::span<const double> a, std::span<const double> b, uint64_t seed, int resamples = 10000,
                          double level = 0.95);

struct MannWhitney {
  double u = 0;  // pairs with a > b, and half of the ties
  double z = 0;  // (u - mean) / deviation, without the continuity correction; 0 where all values are equal
  double p = 1;  // two-sided, by the normal approximation with corrections for ties and continuity
};
// Mann and Whitney, 1947.
MannWhitney mann_whitney(std::span<const double> a, std::span<const double> b);

// (mean a - mean b) / pooled deviation, which divides by n - 1 (Cohen, 1988). Error(data) for fewer than two values in
// a sample. Without any deviation: 0 where the means are equal, otherwise an infinity.
double cohens_d(std::span<const double> a, std::span<const double> b);
// Share of pairs with a > b less that with a < b (Cliff, 1993).
double cliffs_delta(std::span<const double> a, std::span<const double> b);

}  // namespace hrm::metrics
