#include "hrm/data/stream.h"

#include <ATen/ATen.h>

#include <cstring>
#include <functional>
#include <span>
#include <thread>

#include "data/puzzle/batch_ring.h"
#include "hrm/base/error.h"
#include "hrm/base/hash.h"
#include "hrm/data/dihedral.h"
#include "hrm/data/maze.h"
#include "hrm/data/sampler.h"
#include "hrm/data/sudoku_symmetry.h"

namespace hrm::data {
namespace {

// Buffers beyond the prefetch depth: the batch in use, and the previous one, whose copy may still be running.
constexpr int64_t kHeldBatches = 2;

using Augment = std::function<void(uint64_t sample, int32_t* inputs, int32_t* labels)>;

Augment make_augment(const PuzzleDataset& dataset, const TrainStreamOptions& options) {
  const ops::Augmentation how = augmentation_of(dataset, options);
  const auto with = [&](auto augmenter) -> Augment {
    return [augmenter, seed = how.seed](uint64_t sample, int32_t* inputs, int32_t* labels) {
      (*augmenter)(seed, sample, inputs, labels);
    };
  };
  switch (how.kind) {
    case ops::AugmentKind::sudoku:
      return with(std::make_shared<SudokuAugmenter>(
          SudokuGeometry{static_cast<int>(how.box_rows), static_cast<int>(how.box_cols)}));
    case ops::AugmentKind::dihedral:
      return with(std::make_shared<DihedralAugmenter>(maze_side(static_cast<size_t>(dataset.meta().seq_len))));
    case ops::AugmentKind::arc:  // the examples are copies already
    case ops::AugmentKind::none:
      break;
  }
  return {};
}

// Row `sample` of the stream, (S) tokens for inputs and for labels.
void write_row(const PuzzleDataset& dataset, const Augment& augment, const SampleRef& sample, int32_t* inputs,
               int32_t* labels) {
  dataset.example(sample.example, inputs, labels);
  if (augment) augment(sample.sample, inputs, labels);
}

}  // namespace

TrainStreamOptions train_stream_options(const config::Config& config, int64_t global_batch_size, bool pinned) {
  TrainStreamOptions options;
  options.seed = static_cast<uint64_t>(config.run.seed);
  options.global_batch_size = global_batch_size;
  options.prefetch_batches = config.data.prefetch_batches;
  options.pinned = pinned;
  options.augmentation = config.data.augmentation;
  options.box_rows = config.data.box_rows;
  options.box_cols = config.data.box_cols;
  return options;
}

ops::Augmentation augmentation_of(const PuzzleDataset& dataset, const TrainStreamOptions& options) {
  const PuzzleMeta& meta = dataset.meta();
  ops::Augmentation how{.seed = options.seed};
  if (dataset.compact()) {
    require(options.augmentation == config::Augmentation::none, ExitCode::usage, "data.augmentation is ",
            options.augmentation, ", but the copies of ", dataset.origin(),
            " are drawn already; set data.augmentation=none");
    how.kind = ops::AugmentKind::arc;
    return how;
  }
  if (options.augmentation == config::Augmentation::none) return how;
  const auto& vocabulary = dataset.vocabulary();
  require(!vocabulary || (options.augmentation == config::Augmentation::dihedral &&
                          vocabulary->symmetries.size() == kDihedralNames.size()),
          ExitCode::usage, "data.augmentation is ", options.augmentation, ", but the vocabulary.json of ",
          dataset.origin(), " does not name these symmetries; set data.augmentation=none, or build square grids with ",
          "--symmetries dihedral");
  if (options.augmentation == config::Augmentation::sudoku) {
    const SudokuGeometry geometry = sudoku_geometry(meta.seq_len, options.box_rows, options.box_cols);
    require(meta.vocab_size == geometry.vocab_size(), ExitCode::usage, "data.augmentation is sudoku, but ",
            dataset.origin(), " has ", meta.vocab_size, " tokens instead of the ", geometry.vocab_size(), " of a ",
            geometry.size(), "x", geometry.size(), " Sudoku");
    how.kind = ops::AugmentKind::sudoku;
    how.box_rows = geometry.box_rows;
    how.box_cols = geometry.box_cols;
    return how;
  }
  require(maze_side(static_cast<size_t>(meta.seq_len)) > 0, ExitCode::usage, "data.augmentation is dihedral, but the ",
          meta.seq_len, " cells of ", dataset.origin(), " are not a square grid");
  how.kind = ops::AugmentKind::dihedral;
  return how;
}

std::string batch_digest(const std::shared_ptr<const PuzzleDataset>& dataset, const TrainStreamOptions& options,
                         int64_t position) {
  const Augment augment = make_augment(*dataset, options);
  std::vector<SampleRef> samples;
  GroupSampler(dataset, options.seed).batch(position, options.global_batch_size, samples);
  const auto length = static_cast<size_t>(dataset->meta().seq_len);
  std::vector<int32_t> row(2 * length + 1);
  Hasher hasher;
  for (const SampleRef& sample : samples) {
    write_row(*dataset, augment, sample, row.data(), row.data() + length);
    row.back() = dataset->puzzle_identifier(sample.puzzle);
    hasher.update(std::as_bytes(std::span(row)));
  }
  return hasher.hex();
}

int64_t position_after(const std::shared_ptr<const PuzzleDataset>& dataset, const TrainStreamOptions& options,
                       int64_t position, int64_t count) {
  GroupSampler sampler(dataset, options.seed);
  std::vector<SampleRef> samples;
  for (int64_t i = 0; i < count; ++i) {
    samples.clear();
    position = sampler.batch(position, options.global_batch_size, samples);
  }
  return position;
}

void StreamBatch::release() {
  batch = {};
  picks = at::Tensor();
  buffer_.reset();
}

// The prefetch thread and its data.
class TrainStream::Producer {
 public:
  Producer(std::shared_ptr<const PuzzleDataset> dataset, const TrainStreamOptions& options, int64_t position)
      : dataset_(std::move(dataset)), options_(options), position_(position), sampler_(dataset_, options.seed) {
    require(options.global_batch_size >= 1 && options.ranks >= 1 && options.rank >= 0 && options.rank < options.ranks &&
                options.global_batch_size % options.ranks == 0,
            ExitCode::usage, "a batch of ", options.global_batch_size, " samples cannot be split over ", options.ranks,
            " ranks: choose a multiple of the ranks");
    require(options.prefetch_batches >= 1, ExitCode::usage, "data.prefetch_batches must be at least 1");
    require(position >= 0, ExitCode::unexpected, "a training stream cannot start at position ", position);
    augment_ = make_augment(*dataset_, options);
    rows_ = options.global_batch_size / options.ranks;
    ring_ = std::make_shared<internal::BatchRing>(options.prefetch_batches + kHeldBatches, rows_, dataset_->meta(),
                                                  options.pinned, options.picks_only);
    thread_ = std::thread([this] { run(); });
  }
  ~Producer() {
    ring_->stop();
    thread_.join();
  }
  internal::BatchRing& ring() { return *ring_; }

 private:
  void run() {
    try {
      while (internal::BatchBuffer* buffer = ring_->wait_free()) {
        fill(*buffer);
        ring_->push_ready(buffer);
      }
    } catch (...) {
      ring_->push_error(std::current_exception());
    }
  }

  void fill(internal::BatchBuffer& buffer) {
    samples_.clear();
    buffer.position_before = position_;
    position_ = sampler_.batch(position_, options_.global_batch_size, samples_);
    buffer.position_after = position_;
    if (options_.picks_only) {
      fill_picks(buffer.picks.data_ptr<int64_t>());
    } else {
      fill_rows(buffer.batch);
    }
  }

  // Row `row` of this rank.
  const SampleRef& sample_of(int64_t row) const { return samples_[options_.rank * rows_ + row]; }

  void fill_picks(int64_t* picks) {
    for (int64_t row = 0; row < rows_; ++row, picks += 3) {
      const SampleRef& sample = sample_of(row);
      const PuzzleDataset::StoredExample stored = dataset_->stored_example(sample.example);
      picks[0] = stored.row;
      picks[1] = dataset_->compact() ? stored.copy : static_cast<int64_t>(sample.sample);
      picks[2] = dataset_->puzzle_identifier(sample.puzzle);
    }
  }

  void fill_rows(const PuzzleBatch& batch) {
    const int64_t length = dataset_->meta().seq_len;
    int32_t* inputs = batch.inputs.data_ptr<int32_t>();
    int32_t* labels = batch.labels.data_ptr<int32_t>();
    int32_t* identifiers = batch.puzzle_identifiers.data_ptr<int32_t>();
    for (int64_t row = 0; row < rows_; ++row, inputs += length, labels += length) {
      const SampleRef& sample = sample_of(row);
      write_row(*dataset_, augment_, sample, inputs, labels);
      identifiers[row] = dataset_->puzzle_identifier(sample.puzzle);
    }
  }

  std::shared_ptr<const PuzzleDataset> dataset_;
  TrainStreamOptions options_;
  int64_t position_;
  GroupSampler sampler_;
  Augment augment_;
  int64_t rows_ = 0;
  std::vector<SampleRef> samples_;
  // Batches that the caller still holds keep the ring alive after this object is destroyed.
  std::shared_ptr<internal::BatchRing> ring_;
  std::thread thread_;
};

TrainStream::TrainStream(std::shared_ptr<const PuzzleDataset> dataset, const TrainStreamOptions& options,
                         int64_t position)
    : producer_(std::make_unique<Producer>(std::move(dataset), options, position)) {}

TrainStream::~TrainStream() = default;

StreamBatch TrainStream::next() {
  StreamBatch result;
  result.buffer_ = producer_->ring().next_ready(wait_ms_);
  result.batch = result.buffer_->batch;
  result.picks = result.buffer_->picks;
  result.position_before = result.buffer_->position_before;
  result.position_after = result.buffer_->position_after;
  return result;
}

namespace {

const PuzzleDataset& check_single_rows(const PuzzleDataset& dataset, const TrainStreamOptions& options) {
  require(dataset.one_example_per_puzzle(), ExitCode::usage,
          "data.reference_semantics=false needs data with one example per puzzle, but ", dataset.origin(),
          " has puzzles with several; set data.reference_semantics=true");
  require(options.rank == 0 && options.ranks == 1, ExitCode::unexpected, "a row stream is not split over ranks");
  return dataset;
}

}  // namespace

RowStream::RowStream(std::shared_ptr<const PuzzleDataset> dataset, const TrainStreamOptions& options, int64_t position)
    : source_((check_single_rows(*dataset, options), dataset), options, position),
      // One more than the caller may hold, for the batch being filled.
      out_(std::make_shared<internal::BatchRing>(kHeldBatches + 1, options.global_batch_size, dataset->meta(),
                                                 options.pinned, options.picks_only)),
      chunk_rows_(options.global_batch_size),
      position_(position) {}

RowStream::~RowStream() = default;

StreamBatch RowStream::next_rows(int64_t n) {
  StreamBatch result;
  result.buffer_ = out_->take_free();
  const internal::BatchBuffer& to = *result.buffer_;
  require(n >= 1 && n <= chunk_rows_, ExitCode::unexpected, "next_rows(", n, ") of a stream of ", chunk_rows_,
          " rows at a time");
  const auto copy_rows = [](const at::Tensor& to_tensor, int64_t to_row, const at::Tensor& from, int64_t from_row,
                            int64_t rows) {
    if (!from.defined()) return;  // only one of rows and picks is defined
    const size_t width = from.nbytes() / static_cast<size_t>(from.size(0));
    std::memcpy(static_cast<char*>(to_tensor.data_ptr()) + to_row * width,
                static_cast<const char*>(from.data_ptr()) + from_row * width, rows * width);
  };
  wait_ms_ = 0;
  for (int64_t done = 0; done < n;) {
    if (!chunk_.buffer_ || used_ == chunk_rows_) {
      chunk_.release();
      chunk_ = source_.next();
      wait_ms_ += source_.wait_ms();
      used_ = 0;
    }
    const int64_t rows = std::min(n - done, chunk_rows_ - used_);
    copy_rows(to.batch.inputs, done, chunk_.batch.inputs, used_, rows);
    copy_rows(to.batch.labels, done, chunk_.batch.labels, used_, rows);
    copy_rows(to.batch.puzzle_identifiers, done, chunk_.batch.puzzle_identifiers, used_, rows);
    copy_rows(to.picks, done, chunk_.picks, used_, rows);
    used_ += rows;
    done += rows;
  }
  const auto first = [n](const at::Tensor& rows) { return rows.defined() ? rows.narrow(0, 0, n) : rows; };
  result.batch = {first(to.batch.inputs), first(to.batch.labels), first(to.batch.puzzle_identifiers), n};
  result.picks = first(to.picks);
  result.position_before = position_;
  position_ += n;
  result.position_after = position_;
  return result;
}

}  // namespace hrm::data
