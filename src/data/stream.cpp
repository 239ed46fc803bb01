#include "hrm/data/stream.h"

#include <ATen/ATen.h>

#include <cstring>
#include <functional>
#include <thread>

#include "data/batch_ring.h"
#include "hrm/base/error.h"
#include "hrm/data/dihedral.h"
#include "hrm/data/maze.h"
#include "hrm/data/sampler.h"
#include "hrm/data/sudoku_symmetry.h"

namespace hrm::data {
namespace {

// Buffers beyond the prefetch depth: the batch in use and the one before, whose copy may still be under way.
constexpr int64_t kHeldBatches = 2;

using Augment = std::function<void(uint64_t sample, int32_t* inputs, int32_t* labels)>;

Augment make_augment(const PuzzleDataset& dataset, const TrainStreamOptions& options) {
  const PuzzleMeta& meta = dataset.meta();
  if (options.augmentation == "none") return {};
  if (options.augmentation == "sudoku") {
    const SudokuGeometry geometry = sudoku_geometry(meta.seq_len, options.box_rows, options.box_cols);
    require(meta.vocab_size == geometry.vocab_size(), ExitCode::usage, "data.augmentation is sudoku, but ",
            dataset.origin(), " has ", meta.vocab_size, " tokens instead of the ", geometry.vocab_size(), " of a ",
            geometry.size(), "x", geometry.size(), " Sudoku");
    auto augmenter = std::make_shared<SudokuAugmenter>(geometry);
    return [augmenter, seed = options.seed](uint64_t sample, int32_t* inputs, int32_t* labels) {
      (*augmenter)(seed, sample, inputs, labels);
    };
  }
  require(options.augmentation == "dihedral", ExitCode::usage, "data.augmentation is ", options.augmentation,
          ", must be none, sudoku or dihedral");
  const int side = maze_side(static_cast<size_t>(meta.seq_len));
  require(side > 0, ExitCode::usage, "data.augmentation is dihedral, but the ", meta.seq_len, " cells of ",
          dataset.origin(), " are no square grid");
  auto augmenter = std::make_shared<DihedralAugmenter>(side);
  return [augmenter, seed = options.seed](uint64_t sample, int32_t* inputs, int32_t* labels) {
    (*augmenter)(seed, sample, inputs, labels);
  };
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

void StreamBatch::release() {
  batch = {};
  buffer_.reset();
}

// The prefetch thread and what it works with.
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
                                                  options.pinned);
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
    const int64_t length = dataset_->meta().seq_len;
    int32_t* inputs = buffer.batch.inputs.data_ptr<int32_t>();
    int32_t* labels = buffer.batch.labels.data_ptr<int32_t>();
    int32_t* identifiers = buffer.batch.puzzle_identifiers.data_ptr<int32_t>();
    for (int64_t row = 0; row < rows_; ++row, inputs += length, labels += length) {
      const SampleRef& sample = samples_[options_.rank * rows_ + row];
      dataset_->example(sample.example, inputs, labels);
      if (augment_) augment_(sample.sample, inputs, labels);
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
  // Batches that the caller still holds keep the ring alive beyond this object.
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
      // One more than the caller may hold, to be filled meanwhile.
      out_(std::make_shared<internal::BatchRing>(kHeldBatches + 1, options.global_batch_size, dataset->meta(),
                                                 options.pinned)),
      position_(position) {}

RowStream::~RowStream() = default;

StreamBatch RowStream::next_rows(int64_t n) {
  StreamBatch result;
  result.buffer_ = out_->take_free();
  const PuzzleBatch& to = result.buffer_->batch;
  require(n >= 1 && n <= to.inputs.size(0), ExitCode::unexpected, "next_rows(", n, ") of a stream of ",
          to.inputs.size(0), " rows at a time");
  const auto copy_rows = [](const at::Tensor& to_tensor, int64_t to_row, const at::Tensor& from, int64_t from_row,
                            int64_t rows) {
    const int64_t width = from.numel() / from.size(0);
    std::memcpy(to_tensor.data_ptr<int32_t>() + to_row * width, from.data_ptr<int32_t>() + from_row * width,
                rows * width * sizeof(int32_t));
  };
  wait_ms_ = 0;
  for (int64_t done = 0; done < n;) {
    if (!chunk_.batch.inputs.defined() || used_ == chunk_.batch.inputs.size(0)) {
      chunk_.release();
      chunk_ = source_.next();
      wait_ms_ += source_.wait_ms();
      used_ = 0;
    }
    const int64_t rows = std::min(n - done, chunk_.batch.inputs.size(0) - used_);
    copy_rows(to.inputs, done, chunk_.batch.inputs, used_, rows);
    copy_rows(to.labels, done, chunk_.batch.labels, used_, rows);
    copy_rows(to.puzzle_identifiers, done, chunk_.batch.puzzle_identifiers, used_, rows);
    used_ += rows;
    done += rows;
  }
  result.batch = {to.inputs.narrow(0, 0, n), to.labels.narrow(0, 0, n), to.puzzle_identifiers.narrow(0, 0, n), n};
  result.position_before = position_;
  position_ += n;
  result.position_after = position_;
  return result;
}

}  // namespace hrm::data
