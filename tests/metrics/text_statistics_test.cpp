#include "hrm/metrics/text_statistics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "support/expect_error.h"

namespace hrm::metrics {
namespace {

TEST(TextStatistics, PassAtK) {
  EXPECT_DOUBLE_EQ(pass_at_k(10, 3, 1), 0.3);
  EXPECT_DOUBLE_EQ(pass_at_k(4, 1, 4), 1);
  EXPECT_DOUBLE_EQ(pass_at_k(4, 0, 4), 0);
  EXPECT_NEAR(pass_at_k(100000, 1, 1000), 0.01, 1e-12) << "no factorial overflows";
}

TEST(TextStatistics, Bootstrap) {
  const std::vector<double> a{1, 2, 3, 4, 5, 6, 7, 8}, b{0, 1, 2, 3, 4, 5, 6, 7};
  const Interval first = bootstrap_mean(a, 3), again = bootstrap_mean(a, 3), other = bootstrap_mean(a, 4, 100);
  EXPECT_EQ(first.low, again.low);
  EXPECT_NE(first.low, other.low);
  EXPECT_DOUBLE_EQ(first.mean, 4.5);
  // The deviation of a resample's mean is sqrt(5.25 / 8) = 0.81.
  EXPECT_NEAR(first.low, 4.5 - 1.96 * 0.81, 0.15);
  EXPECT_NEAR(first.high, 4.5 + 1.96 * 0.81, 0.15);
  const Interval paired = bootstrap_paired(a, b, 1, 100);
  EXPECT_DOUBLE_EQ(paired.low, 1);
  EXPECT_DOUBLE_EQ(paired.high, 1);
}

TEST(TextStatistics, TwoGroups) {
  const std::vector<double> a{1, 2, 2, 3}, b{2, 3, 4};
  const MannWhitney got = mann_whitney(a, b);
  EXPECT_DOUBLE_EQ(got.u, 2.5);  // 0 + 2 * 0.5 + 1.5
  const double deviation = std::sqrt(12.0 / 12 * (8 - 30.0 / 42));
  EXPECT_DOUBLE_EQ(got.z, -3.5 / deviation);
  EXPECT_DOUBLE_EQ(got.p, std::erfc(3 / deviation / std::sqrt(2.0)));
  EXPECT_NEAR(cliffs_delta(a, b), -7.0 / 12, 1e-15);
  EXPECT_DOUBLE_EQ(cohens_d(a, b), -1 / std::sqrt(4.0 / 5));
  EXPECT_EQ(mann_whitney(std::vector<double>{1}, std::vector<double>{1}).p, 1);
  EXPECT_TRUE(std::isinf(cohens_d(std::vector<double>{1, 1}, std::vector<double>{2, 2})));
}

TEST(TextStatistics, RefusesBadSamples) {
  const std::vector<double> one{1}, none, nan{std::nan("")};
  test::expect_error(ExitCode::usage, {"pass@3"}, [] { pass_at_k(2, 1, 3); });
  test::expect_error(ExitCode::data, {"at least 1"}, [&] { bootstrap_mean(none, 0); });
  test::expect_error(ExitCode::data, {"not finite"}, [&] { bootstrap_mean(nan, 0); });
  test::expect_error(ExitCode::usage, {"level"}, [&] { bootstrap_mean(one, 0, 10, 1); });
  test::expect_error(ExitCode::data, {"equally many"}, [&] { bootstrap_paired(one, none, 0); });
  test::expect_error(ExitCode::data, {"at least 2"}, [&] { cohens_d(one, one); });
}

}  // namespace
}  // namespace hrm::metrics
