#pragma once
// Batches drawn on a device beside those that the stream prepares on the host.

#include <ATen/ATen.h>

#include "data/data_support.h"
#include "data/puzzle/arc_compact_cases.h"
#include "hrm/data/device_table.h"
#include "support/temp_dir.h"

namespace hrm::data {

inline PuzzleBatch empty_batch(int64_t rows, int64_t length, at::Device device) {
  const auto ints = at::device(device).dtype(at::kInt);
  return {at::full({rows, length}, -1, ints), at::full({rows, length}, -1, ints), at::full({rows}, -1, ints), rows};
}

inline void expect_same_batch(const PuzzleBatch& got, const PuzzleBatch& want, const std::string& what) {
  EXPECT_TRUE(at::equal(got.inputs.cpu(), want.inputs)) << what;
  EXPECT_TRUE(at::equal(got.labels.cpu(), want.labels)) << what;
  EXPECT_TRUE(at::equal(got.puzzle_identifiers.cpu(), want.puzzle_identifiers)) << what;
}

// Some thousand samples, by batches and by rows.
inline void expect_same_stream(const std::shared_ptr<PuzzleDataset>& dataset, TrainStreamOptions options,
                               at::Device device) {
  options.global_batch_size = 96;
  const std::string what = cat(options.augmentation, " of ", dataset->origin());
  const int64_t length = dataset->meta().seq_len;
  const DeviceTable table(*dataset, options, device);
  TrainStreamOptions picks = options;
  picks.picks_only = true;
  picks.pinned = device.is_cuda();
  TrainStream host(dataset, options, 5), drawn(dataset, picks, 5);
  for (int step = 0; step < 25; ++step) {
    const StreamBatch want = host.next(), got = drawn.next();
    ASSERT_EQ(got.position_after, want.position_after);
    ASSERT_FALSE(got.batch.inputs.defined());
    const PuzzleBatch batch = empty_batch(96, length, device);
    load_rows(got, batch, &table);
    expect_same_batch(batch, want.batch, what);
  }
  if (!dataset->one_example_per_puzzle()) return;
  RowStream host_rows(dataset, options, 3), drawn_rows(dataset, picks, 3);
  for (const int64_t n : {1, 96, 40, 70}) {
    const StreamBatch want = host_rows.next_rows(n), got = drawn_rows.next_rows(n);
    const PuzzleBatch batch = empty_batch(n, length, device);
    load_rows(got, batch, &table);
    expect_same_batch(batch, want.batch, what + ", by rows");
    const PuzzleBatch copied = empty_batch(n, length, device);
    load_rows(want, copied, nullptr);
    expect_same_batch(copied, want.batch, what + ", copied");
  }
}

inline void expect_same_streams(at::Device device) {
  const auto nine = open_dataset(shipped("train_17clue_1k.csv"), "train", config::DataConfig());
  const auto several = open_dataset(fixture("dataset_sudoku/aug"), "train", config::DataConfig());
  TrainStreamOptions options;
  options.seed = 0x123456789abcdefu;
  for (const auto augmentation :
       {config::Augmentation::none, config::Augmentation::sudoku, config::Augmentation::dihedral}) {
    options.augmentation = augmentation;
    expect_same_stream(nine, options, device);
    expect_same_stream(several, options, device);
  }
  // Compact folders of ARC tasks; with one pair each also by rows.
  options.augmentation = config::Augmentation::none;
  for (const int pairs : {4, 1}) {
    const test::TempDir dir;
    expect_same_stream(compact_arc(dir.path(), 6, pairs, "train"), options, device);
  }
}

}  // namespace hrm::data
