#include "hrm/data/test_reader.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <set>

#include "data/data_support.h"

namespace hrm::data {
namespace {

TEST(TestReader, ReadsAllInOrderAndPadsTheLastBatch) {
  const auto dataset = grouped_dataset({{2, 1}, {4}});
  const TestReader reader(dataset, {.global_batch_size = 3});
  EXPECT_EQ(reader.num_samples(), 7);
  ASSERT_EQ(reader.num_batches(), 3);
  std::vector<int64_t> examples;
  for (int64_t index = 0; index < 3; ++index) {
    const TestBatch batch = reader.batch(index);
    examples.insert(examples.end(), batch.examples.begin(), batch.examples.end());
    EXPECT_EQ(batch.batch.inputs.size(0), 3);
    EXPECT_EQ(batch.global_valid_rows, index < 2 ? 3 : 1);
  }
  EXPECT_EQ(examples, (std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6}));
  const TestBatch last = reader.batch(2);
  EXPECT_EQ(last.batch.valid_rows, 1);
  EXPECT_EQ(last.batch.inputs[0][1].item<int>(), 7);
  EXPECT_EQ(last.batch.puzzle_identifiers[0].item<int>(), 2);
  EXPECT_TRUE(last.batch.inputs.narrow(0, 1, 2).eq(0).all().item<bool>());
  EXPECT_TRUE(last.batch.labels.narrow(0, 1, 2).eq(kIgnoreLabel).all().item<bool>());
  EXPECT_TRUE(last.batch.puzzle_identifiers.narrow(0, 1, 2).eq(0).all().item<bool>());
}

TEST(TestReader, RanksSliceEachBatch) {
  const auto dataset = single_dataset(9);
  const TestReader whole(dataset, {.global_batch_size = 4});
  for (int64_t index = 0; index < whole.num_batches(); ++index) {
    std::vector<at::Tensor> inputs;
    int64_t valid = 0;
    for (int64_t rank = 0; rank < 2; ++rank) {
      const TestBatch slice = TestReader(dataset, {.global_batch_size = 4, .rank = rank, .ranks = 2}).batch(index);
      inputs.push_back(slice.batch.inputs);
      valid += slice.batch.valid_rows;
      EXPECT_EQ(slice.global_valid_rows, whole.batch(index).global_valid_rows);
    }
    EXPECT_TRUE(at::equal(at::cat(inputs), whole.batch(index).batch.inputs));
    EXPECT_EQ(valid, whole.batch(index).batch.valid_rows);
  }
}

TEST(TestReader, SubsetsSpreadOverTheSet) {
  const auto dataset = single_dataset(100);
  const TestReader reader(dataset, {.global_batch_size = 8, .max_samples = 10});
  EXPECT_EQ(reader.num_samples(), 10);
  EXPECT_EQ(reader.num_batches(), 2);
  std::vector<int64_t> examples = reader.batch(0).examples;
  EXPECT_EQ(examples[1], 10);
  EXPECT_EQ(reader.batch(1).examples.back(), 90);
  EXPECT_EQ(TestReader(dataset, {.global_batch_size = 8, .max_samples = 1000}).num_samples(), 100);
}

TEST(TestReader, Refusals) {
  expect_error(ExitCode::usage, {"batch of 3", "2 ranks"},
               [] { TestReader(single_dataset(4), {.global_batch_size = 3, .ranks = 2}); });
  const TestReader reader(single_dataset(4), {.global_batch_size = 4});
  expect_error(ExitCode::unexpected, {"evaluation batch 1 of 1"}, [&] { reader.batch(1); });
}

}  // namespace
}  // namespace hrm::data
