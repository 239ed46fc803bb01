#include "hrm/data/device_table.h"

#include "data/puzzle/device_table_cases.h"

namespace hrm::data {
namespace {

TEST(DeviceTable, GivesTheStreamsRows) {
  expect_same_streams(at::kCPU);
}

TEST(DeviceTable, RanksTakeTheirSlice) {
  const auto dataset = single_dataset(40);
  TrainStreamOptions options;
  options.global_batch_size = 8;
  options.ranks = 2;
  options.rank = 1;
  TrainStream rows(dataset, options, 0);
  options.picks_only = true;
  TrainStream picks(dataset, options, 0);
  const DeviceTable table(*dataset, options, at::kCPU);
  const StreamBatch want = rows.next(), got = picks.next();
  ASSERT_EQ(got.picks.sizes(), (std::vector<int64_t>{4, 3}));
  const PuzzleBatch batch = empty_batch(4, 2, at::kCPU);
  load_rows(got, batch, &table);
  expect_same_batch(batch, want.batch, "second rank");
}

TEST(DeviceTable, IsUsedWhereAskedFor) {
  const auto dataset = single_dataset(4);
  config::Config config;
  const at::Device gpu(at::kCUDA, 0);
  EXPECT_EQ(DeviceTable::bytes(*dataset), 4 * 2 * 2 * 4);
  EXPECT_TRUE(use_device_table(config, *dataset, gpu));
  EXPECT_FALSE(use_device_table(config, *dataset, at::kCPU));
  config.data.augmentation_device = config::AugmentationDevice::device;
  EXPECT_TRUE(use_device_table(config, *dataset, at::kCPU));
  config.data.augmentation_device = config::AugmentationDevice::host;
  EXPECT_FALSE(use_device_table(config, *dataset, gpu));
  config.data.augmentation_device = config::AugmentationDevice::automatic;
  config.ops.backend = config::OpsBackend::reference;
  EXPECT_FALSE(use_device_table(config, *dataset, gpu));
}

TEST(DeviceTable, RefusesOptionsThatDoNotFit) {
  TrainStreamOptions options;
  options.augmentation = config::Augmentation::sudoku;
  expect_error(ExitCode::usage, {"not a square grid"}, [&] { DeviceTable(*single_dataset(4), options, at::kCPU); });
}

}  // namespace
}  // namespace hrm::data
