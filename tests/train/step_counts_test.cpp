// A gate against regressions where times say nothing: what a step asks for, counted.

#include "train/step_counts.h"

#include <functional>

#include "train/small_contrastive.h"
#include "train/small_language.h"
#include "train/small_polychromic.h"
#include "train/small_run.h"

namespace hrm {
namespace {

using testing::fresh_folder;

// Of two steps, behind two that warm up.
testing::Counts counts_of_steps(train::Trainer& trainer) {
  trainer.start_fresh();
  trainer.run_steps(2);
  const WorkCounter counter(at::kCPU);
  trainer.run_steps(2);
  return testing::counts_json(counter.counts());
}

void expect_counts(const std::string& work, const std::function<testing::Counts()>& count) {
  const testing::Counts counts = count();
  testing::expect_recorded(work + " on a CPU", counts, "build/tests/test_train");
}

TEST(StepCounts, Puzzle) {
  expect_counts("a puzzle model", [] {
    testing::SmallRun run(fresh_folder("run"));
    return counts_of_steps(run.trainer);
  });
}

TEST(StepCounts, PuzzleInPlainAten) {
  expect_counts("a puzzle model with ops.backend=reference", [] {
    testing::SmallRun run(fresh_folder("run"), {"ops.backend=reference"});
    return counts_of_steps(run.trainer);
  });
}

TEST(StepCounts, Language) {
  expect_counts("a language model", [] {
    testing::SmallLanguage run(fresh_folder("run"));
    return counts_of_steps(run.trainer);
  });
}

TEST(StepCounts, Polychromic) {
  expect_counts("a causal model with completions", [] {
    testing::SmallPolychromic run(fresh_folder("run"));
    return counts_of_steps(run.trainer);
  });
}

TEST(StepCounts, Contrastive) {
  expect_counts("a contrastive model", [] {
    testing::SmallContrastive run(fresh_folder("run"), testing::ring_and_field());
    return counts_of_steps(run.trainer);
  });
}

TEST(StepCounts, AreTheSameEachTime) {
  const auto count = [](const char* name) {
    testing::SmallRun run(fresh_folder(name));
    return counts_of_steps(run.trainer);
  };
  EXPECT_EQ(count("one"), count("two"));
}

TEST(StepCounts, AChangeIsNamed) {
  const testing::Counts before{{"calls", 10}, {"bytes", 1000}};
  EXPECT_EQ(testing::changed_counts(before, before, 0), "");
  EXPECT_EQ(testing::changed_counts(before, {{"calls", 11}, {"bytes", 1010}}, 0), "calls 10 -> 11, bytes 1000 -> 1010");
  EXPECT_EQ(testing::changed_counts(before, {{"calls", 11}, {"bytes", 1010}}, 0.05), "calls 10 -> 11");
  EXPECT_EQ(testing::changed_counts(testing::Counts(), {{"calls", 11}}, 0), "calls null -> 11");
}

}  // namespace
}  // namespace hrm
