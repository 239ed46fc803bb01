#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "data/puzzle/device_table_cases.h"
#include "hrm/data/stream.h"
#include "hrm/data/test_reader.h"

namespace hrm::data {
namespace {

// Page-locked buffers hold the same rows, and asynchronous copies from them arrive.
TEST(PinnedStream, GivesTheSameRows) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no CUDA device";
  const auto dataset = single_dataset(40);
  TrainStreamOptions options;
  options.global_batch_size = 8;
  TrainStream pageable(dataset, options, 0);
  options.pinned = true;
  TrainStream pinned(dataset, options, 0);
  RowStream rows(dataset, options, 0);
  for (int step = 0; step < 10; ++step) {
    const StreamBatch want = pageable.next(), got = pinned.next(), row = rows.next_rows(8);
    EXPECT_TRUE(got.batch.inputs.is_pinned());
    EXPECT_TRUE(row.batch.labels.is_pinned());
    const at::Tensor on_gpu = got.batch.inputs.to(at::kCUDA, /*non_blocking=*/true);
    EXPECT_TRUE(at::equal(on_gpu.cpu(), want.batch.inputs));
    EXPECT_TRUE(at::equal(row.batch.inputs, want.batch.inputs));
  }
}

TEST(DeviceTableGpu, GivesTheStreamsRows) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no CUDA device";
  expect_same_streams(at::kCUDA);
}

TEST(PinnedTestReader, PinsItsBatches) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no CUDA device";
  const TestReader reader(single_dataset(5), {.global_batch_size = 4, .pinned = true});
  EXPECT_TRUE(reader.batch(1).batch.inputs.is_pinned());
}

}  // namespace
}  // namespace hrm::data
