// Where the time of polychromic steps goes.

#include "hrm/tasks/polychromic_times.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace hrm::tasks {
namespace {

TEST(PolychromicTimes, WhatSamplingLeavesIsTraining) {
  PolychromicTimes times(/*samples=*/true);
  const SamplingTimes once{.merge_ms = 1,
                           .prefill_ms = 10,
                           .decode_ms = 30,
                           .encode_ms = 4,
                           .diversity_ms = 5,
                           .prompt_tokens = 100,
                           .answer_tokens = 80,
                           .encoded_tokens = 60};
  times.add_sampling(once);
  times.add_sampling(once);
  const NamedValues values = times.take(/*steps=*/4, /*step_ms=*/50, {});
  EXPECT_DOUBLE_EQ(value_of(values, "merge_ms"), 0.5);
  EXPECT_DOUBLE_EQ(value_of(values, "decode_ms"), 15);
  EXPECT_DOUBLE_EQ(value_of(values, "train_ms"), 50 - 25);
  EXPECT_DOUBLE_EQ(value_of(values, "prefill_tokens_per_s"), 100 / 10e-3);
  EXPECT_DOUBLE_EQ(value_of(values, "encode_tokens_per_s"), 60 / 4e-3);
  EXPECT_DOUBLE_EQ(value_of(values, "diversity_tokens_per_s"), 80 / 5e-3);
  EXPECT_EQ(times.progress_text(), " | generated 2000 tok/s | decode 30 %, prefill 10 %, diversity 5 %");
  EXPECT_DOUBLE_EQ(value_of(times.take(4, 50, {}), "train_ms"), 50) << "a new window";
}

TEST(PolychromicTimes, FlopsAreThoseOfTheWindowOrTheOneBefore) {
  PolychromicTimes times(/*samples=*/false);
  EXPECT_EQ(times.flops_per_step(), 0);
  times.add_work(100, 10);
  times.add_work(300, 20);
  EXPECT_EQ(times.flops_per_step(), 200);
  const NamedValues values = times.take(2, 1, {});
  EXPECT_TRUE(std::none_of(values.begin(), values.end(), [](const auto& item) { return item.first == "train_ms"; }))
      << "nothing was sampled that it could be left of";
  EXPECT_EQ(times.flops_per_step(), 200);
  times.add_work(500, 10);
  EXPECT_EQ(times.flops_per_step(), 500);
}

TEST(PolychromicTimes, PhasesComeFromTheStepsClock) {
  PolychromicTimes times(/*samples=*/false);
  times.add_work(1, 1000);
  const NamedValues phases{{"forward", 2},      {"backward", 4},       {"all_reduce", 0.5},
                           {"grad_clip", 0.25}, {"optimizer.step", 1}, {"report", 8}};
  const NamedValues values = times.take(1, 20, phases);
  EXPECT_DOUBLE_EQ(value_of(values, "forward_ms"), 2);
  EXPECT_DOUBLE_EQ(value_of(values, "backward_ms"), 4);
  EXPECT_DOUBLE_EQ(value_of(values, "optimizer_ms"), 1.75);
  EXPECT_DOUBLE_EQ(value_of(values, "forward_tokens_per_s"), 1000 / 2e-3);
}

}  // namespace
}  // namespace hrm::tasks
