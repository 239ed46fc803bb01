#include "hrm/runtime/async_read.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace hrm {
namespace {

TEST(AsyncReader, InOrderWithTags) {
  AsyncReader reader;
  EXPECT_FALSE(reader.pop(false).has_value());
  EXPECT_FALSE(reader.pop(true).has_value());  // nothing to wait for
  reader.push(7, at::tensor({1.5, -2.0}));
  reader.push(3, at::tensor({4.0}));
  reader.push(9, at::zeros({0}));
  EXPECT_EQ(reader.pending(), 3U);

  const auto first = reader.pop(false);
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->tag, 7);
  EXPECT_EQ(first->values, (std::vector<double>{1.5, -2.0}));
  EXPECT_EQ(reader.pending(), 2U);
  const auto second = reader.pop(true);
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ(second->tag, 3);
  EXPECT_EQ(second->values, (std::vector<double>{4.0}));
  const auto third = reader.pop(true);
  ASSERT_TRUE(third.has_value());
  EXPECT_TRUE(third->values.empty());
  EXPECT_FALSE(reader.pop(true).has_value());
  EXPECT_EQ(reader.pending(), 0U);
}

// What is read is the content at the time of push: the trainer overwrites the same tensor at the next step.
TEST(AsyncReader, KeepsTheContentOfThePush) {
  AsyncReader reader;
  at::Tensor sums = at::tensor({1.0, 2.0}, at::kDouble);
  reader.push(1, sums);
  sums.fill_(5);
  reader.push(2, sums);
  sums.zero_();
  EXPECT_EQ(reader.pop(false)->values, (std::vector<double>{1, 2}));
  EXPECT_EQ(reader.pop(false)->values, (std::vector<double>{5, 5}));
}

TEST(AsyncReader, WidensAnyFloatingType) {
  AsyncReader reader;
  const std::vector<double> values{0.5, -1.25, 3};
  for (const at::ScalarType type : {at::kHalf, at::kBFloat16, at::kFloat, at::kDouble}) {
    reader.push(0, at::tensor(values, at::kDouble).to(type));
    EXPECT_EQ(reader.pop(true)->values, values) << type;
  }
  const double third = 1.0 / 3;  // float64 is not rounded on the way
  reader.push(0, at::tensor({third}, at::kDouble));
  EXPECT_EQ(reader.pop(true)->values, std::vector<double>{third});
}

TEST(AsyncReader, StridedViews) {
  AsyncReader reader;
  const at::Tensor table = at::arange(6, at::kDouble).view({2, 3});
  reader.push(0, table.select(1, 1));
  EXPECT_EQ(reader.pop(true)->values, (std::vector<double>{1, 4}));
}

}  // namespace
}  // namespace hrm
