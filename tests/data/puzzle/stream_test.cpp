#include "hrm/data/stream.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "data/data_support.h"
#include "hrm/data/prefetch_stats.h"
#include "hrm/data/sampler.h"
#include "hrm/data/sudoku_symmetry.h"

namespace hrm::data {
namespace {

TrainStreamOptions options_for(int64_t batch, int64_t prefetch = 2) {
  TrainStreamOptions options;
  options.seed = 6;
  options.global_batch_size = batch;
  options.prefetch_batches = prefetch;
  return options;
}

std::shared_ptr<PuzzleDataset> sudoku_dataset() {
  return open_dataset(fixture("dataset_sudoku/aug"), "train", config::DataConfig());
}

struct Rows {
  at::Tensor inputs, labels, identifiers;
  std::vector<int64_t> positions;
};

Rows take_rows(TrainStream& stream, int batches) {
  std::vector<at::Tensor> inputs, labels, identifiers;
  Rows rows;
  for (int i = 0; i < batches; ++i) {
    const StreamBatch batch = stream.next();
    inputs.push_back(batch.batch.inputs.clone());
    labels.push_back(batch.batch.labels.clone());
    identifiers.push_back(batch.batch.puzzle_identifiers.clone());
    rows.positions.push_back(batch.position_after);
  }
  rows.inputs = at::cat(inputs);
  rows.labels = at::cat(labels);
  rows.identifiers = at::cat(identifiers);
  return rows;
}

void expect_same_rows(const Rows& got, const Rows& want) {
  EXPECT_TRUE(at::equal(got.inputs, want.inputs));
  EXPECT_TRUE(at::equal(got.labels, want.labels));
  EXPECT_TRUE(at::equal(got.identifiers, want.identifiers));
}

TEST(TrainStream, GivesTheSamplersRows) {
  const auto dataset = grouped_dataset({{3, 2}, {3}, {1}, {5}});
  TrainStream stream(dataset, options_for(4), 0);
  GroupSampler sampler(dataset, 6);
  int64_t position = 0;
  for (int step = 0; step < 10; ++step) {
    std::vector<SampleRef> want;
    const int64_t next = sampler.batch(position, 4, want);
    const StreamBatch batch = stream.next();
    EXPECT_EQ(batch.position_before, position);
    EXPECT_EQ(batch.position_after, next);
    EXPECT_EQ(batch.batch.valid_rows, 4);
    for (int64_t row = 0; row < 4; ++row) {
      int32_t inputs[2], labels[2];
      dataset->example(want[row].example, inputs, labels);
      EXPECT_EQ(batch.batch.inputs[row][1].item<int32_t>(), inputs[1]);
      EXPECT_EQ(batch.batch.labels[row][0].item<int32_t>(), labels[0]);
      EXPECT_EQ(batch.batch.puzzle_identifiers[row].item<int32_t>(), want[row].puzzle);
    }
    position = next;
  }
}

TEST(TrainStream, PrefetchDepthAndBatchSizeDoNotChangeTheRows) {
  const auto dataset = sudoku_dataset();
  TrainStreamOptions options = options_for(6);
  options.augmentation = config::Augmentation::sudoku;
  TrainStream shallow(dataset, options, 0);
  const Rows want = take_rows(shallow, 10);
  options.prefetch_batches = 9;
  TrainStream deep(dataset, options, 0);
  expect_same_rows(take_rows(deep, 10), want);
  options.global_batch_size = 15;  // rows belong to global indices
  TrainStream other(dataset, options, 0);
  expect_same_rows(take_rows(other, 4), want);
}

TEST(TrainStream, RestartsAnywhere) {
  const auto dataset = sudoku_dataset();
  TrainStreamOptions options = options_for(7);
  options.augmentation = config::Augmentation::sudoku;
  TrainStream straight(dataset, options, 0);
  const Rows all = take_rows(straight, 9);
  for (const int done : {1, 4, 8}) {
    TrainStream resumed(dataset, options, all.positions[done - 1]);
    const Rows rest = take_rows(resumed, 9 - done);
    EXPECT_TRUE(at::equal(rest.inputs, all.inputs.narrow(0, done * 7, (9 - done) * 7)));
    EXPECT_TRUE(at::equal(rest.labels, all.labels.narrow(0, done * 7, (9 - done) * 7)));
  }
}

TEST(TrainStream, RanksSliceTheGlobalBatch) {
  const auto dataset = sudoku_dataset();
  TrainStreamOptions options = options_for(8);
  options.augmentation = config::Augmentation::sudoku;
  TrainStream whole(dataset, options, 0);
  options.ranks = 2;
  TrainStream first(dataset, options, 0);
  options.rank = 1;
  TrainStream second(dataset, options, 0);
  for (int step = 0; step < 5; ++step) {
    const StreamBatch want = whole.next(), a = first.next(), b = second.next();
    EXPECT_TRUE(at::equal(at::cat({a.batch.inputs, b.batch.inputs}), want.batch.inputs));
    EXPECT_TRUE(at::equal(at::cat({a.batch.labels, b.batch.labels}), want.batch.labels));
    EXPECT_EQ(a.position_after, want.position_after);
    EXPECT_EQ(b.position_after, want.position_after);
  }
}

TEST(TrainStream, AugmentationIsKeyedByTheVisit) {
  const auto dataset = sudoku_dataset();
  TrainStreamOptions options = options_for(10);
  TrainStream plain(dataset, options, 0);
  options.augmentation = config::Augmentation::sudoku;
  TrainStream augmented(dataset, options, 0);
  const Rows before = take_rows(plain, 2), after = take_rows(augmented, 2);
  EXPECT_FALSE(at::equal(before.inputs, after.inputs));
  SudokuAugmenter augmenter({3, 3});
  for (int64_t row = 0; row < 20; ++row) {
    at::Tensor inputs = before.inputs[row].clone(), labels = before.labels[row].clone();
    augmenter(6, static_cast<uint64_t>(row), inputs.data_ptr<int32_t>(), labels.data_ptr<int32_t>());
    EXPECT_TRUE(at::equal(inputs, after.inputs[row]));
    EXPECT_TRUE(at::equal(labels, after.labels[row]));
  }
}

TEST(TrainStream, DihedralAugmentation) {
  const auto dataset = sudoku_dataset();
  TrainStreamOptions options = options_for(10);
  options.augmentation = config::Augmentation::dihedral;
  TrainStream stream(dataset, options, 0);
  const Rows rows = take_rows(stream, 2);
  // Rotations and reflections keep the number of each token.
  TrainStream plain(dataset, options_for(10), 0);
  const Rows before = take_rows(plain, 2);
  EXPECT_TRUE(at::equal(std::get<0>(rows.labels.sort(1)), std::get<0>(before.labels.sort(1))));
  EXPECT_FALSE(at::equal(rows.labels, before.labels));
}

TEST(TrainStream, HeldBuffersAreNotOverwritten) {
  const auto dataset = single_dataset(40);
  TrainStream stream(dataset, options_for(5, 1), 0);
  StreamBatch first = stream.next();
  const at::Tensor copy = first.batch.inputs.clone();
  for (int step = 0; step < 20; ++step) stream.next();
  EXPECT_TRUE(at::equal(first.batch.inputs, copy));
  // After its release the buffer goes round again: three buffers serve any number of batches.
  const void* memory = first.batch.inputs.data_ptr();
  first.release();
  EXPECT_FALSE(first.batch.inputs.defined());
  bool again = false;
  for (int step = 0; step < 6; ++step) again |= stream.next().batch.inputs.data_ptr() == memory;
  EXPECT_TRUE(again);
}

TEST(TrainStream, HoldingTooManyBatchesIsAnErrorNotADeadlock) {
  TrainStream stream(single_dataset(40), options_for(5, 1), 0);
  std::vector<StreamBatch> held;
  expect_error(ExitCode::unexpected, {"batch buffers are held by the caller"}, [&] {
    for (int i = 0; i < 10; ++i) held.push_back(stream.next());
  });
  EXPECT_EQ(held.size(), 3u);
  held.pop_back();
  EXPECT_EQ(stream.next().position_before, 15);
}

TEST(TrainStream, BatchesOutliveTheStream) {
  StreamBatch batch;
  {
    TrainStream stream(single_dataset(40), options_for(5), 0);
    batch = stream.next();
  }
  EXPECT_EQ(batch.batch.inputs.sum().item<int64_t>() > 0, true);
}

// A data set that fails, or takes its time, at its n-th read.
class OddDataset : public PuzzleDataset {
 public:
  explicit OddDataset(std::chrono::milliseconds pause, int64_t fails_at) : pause_(pause), fails_at_(fails_at) {
    meta_.vocab_size = 4;
    meta_.seq_len = 1;
    for (int64_t i = 1; i <= 8; ++i) {
      group_indices_.push_back(i);
      puzzle_indices_.push_back(i);
      puzzle_identifiers_.push_back(0);
    }
    finish_index();
  }
  void example(int64_t, int32_t* inputs, int32_t* labels) const override {
    std::this_thread::sleep_for(pause_);
    if (reads_++ == fails_at_) fail(ExitCode::data, "rows.npy: token 9 in row 3");
    *inputs = *labels = 1;
  }

 private:
  std::chrono::milliseconds pause_;
  int64_t fails_at_;
  mutable std::atomic<int64_t> reads_{0};
};

TEST(TrainStream, ErrorsOfTheThreadReachNext) {
  TrainStream stream(std::make_shared<OddDataset>(std::chrono::milliseconds(0), 5), options_for(2), 0);
  stream.next();
  stream.next();
  for (int again = 0; again < 2; ++again) {
    expect_error(ExitCode::data, {"rows.npy: token 9 in row 3"}, [&] { stream.next(); });
  }
}

TEST(TrainStream, MeasuresWaiting) {
  // Who asks at once waits for 4 rows of 5 ms; on a busy machine the batch can be there before it is asked for.
  TrainStream slow(std::make_shared<OddDataset>(std::chrono::milliseconds(5), -1), options_for(4), 0);
  take_prefetch_stats();
  bool waited = false;
  int asked = 0;
  double wait_ms = 0;
  for (int tries = 0; tries < 20 && !waited; ++tries) {
    slow.next();
    waited = slow.wait_ms() > 1;
    ++asked;
    wait_ms += slow.wait_ms();
  }
  EXPECT_TRUE(waited);
  auto stats = take_prefetch_stats();
  ASSERT_EQ(stats.size(), 1u);
  EXPECT_EQ(stats.at("puzzles").batches, asked);
  EXPECT_DOUBLE_EQ(stats.at("puzzles").wait_ms, wait_ms);
  EXPECT_GE(stats.at("puzzles").fill_ms, 20.0 * asked) << "4 rows of 5 ms each";
  // A batch that is ready costs no wait at all; the thread gets some time to make one.
  TrainStream fast(single_dataset(40), options_for(4), 0);
  bool ready = false;
  for (int tries = 0; tries < 100 && !ready; ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    fast.next();
    ready = fast.wait_ms() == 0;
  }
  EXPECT_TRUE(ready);
  stats = take_prefetch_stats();
  EXPECT_GE(stats.at("puzzles").ready, 1.0);
}

TEST(TrainStream, RefusesOptionsThatDoNotFit) {
  const auto open = [](const TrainStreamOptions& options) { TrainStream stream(sudoku_dataset(), options, 0); };
  TrainStreamOptions options = options_for(7);
  options.ranks = 2;
  expect_error(ExitCode::usage, {"a batch of 7", "2 ranks"}, [&] { open(options); });
  options = options_for(8);
  options.augmentation = config::Augmentation::sudoku;
  options.box_rows = 2;
  options.box_cols = 3;
  expect_error(ExitCode::usage, {"boxes of 2x3"}, [&] { open(options); });
  options.box_rows = options.box_cols = 0;
  expect_error(ExitCode::usage, {"not a square grid"}, [&] { TrainStream stream(single_dataset(4), options, 0); });
  options.augmentation = config::Augmentation::dihedral;
  expect_error(ExitCode::usage, {"not a square grid"}, [&] { TrainStream stream(single_dataset(4), options, 0); });
}

TEST(RowStream, GivesTheSameRowsInPiecesOfAnySize) {
  const auto dataset = sudoku_dataset();
  TrainStreamOptions options = options_for(8);
  options.augmentation = config::Augmentation::sudoku;
  TrainStream whole(dataset, options, 0);
  const Rows want = take_rows(whole, 5);
  for (const int64_t start : {0, 3, 8}) {
    RowStream stream(dataset, options, start);
    int64_t at = start;
    for (const int64_t n : {1, 8, 3, 5, 7, 2}) {
      const StreamBatch rows = stream.next_rows(n);
      EXPECT_EQ(rows.position_before, at);
      EXPECT_EQ(rows.batch.valid_rows, n);
      EXPECT_TRUE(at::equal(rows.batch.inputs, want.inputs.narrow(0, at, n)));
      EXPECT_TRUE(at::equal(rows.batch.labels, want.labels.narrow(0, at, n)));
      at += n;
      EXPECT_EQ(stream.position(), at);
    }
  }
}

TEST(RowStream, Refusals) {
  expect_error(ExitCode::usage, {"data.reference_semantics=false", "one example per puzzle"}, [] {
    RowStream stream(grouped_dataset({{2}, {1}}), options_for(4), 0);
  });
  RowStream stream(single_dataset(9), options_for(4), 0);
  expect_error(ExitCode::unexpected, {"next_rows(5)"}, [&] { stream.next_rows(5); });
  std::vector<StreamBatch> held;
  expect_error(ExitCode::unexpected, {"held by the caller"}, [&] {
    for (int i = 0; i < 10; ++i) held.push_back(stream.next_rows(2));
  });
}

TEST(TrainStream, OptionsFromTheConfiguration) {
  config::Config config;
  config.run.seed = 77;
  config.data.prefetch_batches = 3;
  config.data.augmentation = config::Augmentation::sudoku;
  config.data.box_rows = 2;
  config.data.box_cols = 3;
  const TrainStreamOptions options = train_stream_options(config, 12, false);
  EXPECT_EQ(options.seed, 77u);
  EXPECT_EQ(options.global_batch_size, 12);
  EXPECT_EQ(options.prefetch_batches, 3);
  EXPECT_EQ(options.augmentation, config::Augmentation::sudoku);
  EXPECT_EQ(options.box_rows, 2);
  EXPECT_EQ(options.box_cols, 3);
}

}  // namespace
}  // namespace hrm::data
