#include "hrm/data/language_stream.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <span>
#include <thread>

#include "data/buffer_ring.h"
#include "data/language/language_rows.h"
#include "hrm/base/error.h"
#include "hrm/base/hash.h"

namespace hrm::data {
namespace {

// Buffers beyond the prefetch depth: the batch in use, and the previous one, whose copy may still be running.
constexpr int64_t kHeldLanguageBatches = 2;

void check_stream_options(const LanguageStreamOptions& options, int64_t position) {
  require(options.global_batch_size >= 1 && options.ranks >= 1 && options.rank >= 0 && options.rank < options.ranks &&
              options.global_batch_size % options.ranks == 0,
          ExitCode::usage, "a batch of ", options.global_batch_size, " samples cannot be split over ", options.ranks,
          " ranks: choose a multiple of the ranks");
  require(options.shape.encoder_len >= 0 && options.shape.decoder_len >= 1, ExitCode::usage, "rows of ",
          options.shape.encoder_len, " encoder and ", options.shape.decoder_len, " decoder positions");
  require(options.prefetch_batches >= 1, ExitCode::usage, "data.prefetch_batches must be at least 1");
  require(position >= 0, ExitCode::unexpected, "a training stream cannot start at position ", position);
}

bool any_packed(const std::vector<WeightedSource>& sources) {
  return std::any_of(sources.begin(), sources.end(), [](const WeightedSource& one) { return one.source->packed(); });
}

template <class T>
void hash(Hasher& hasher, const T* values, int64_t count) {
  if (values != nullptr) hasher.update(std::as_bytes(std::span(values, static_cast<size_t>(count))));
}

}  // namespace

namespace internal {
struct LanguageBuffer {
  LanguageBatch batch;
  int64_t position_before = 0;
  int64_t position_after = 0;
};
}  // namespace internal

std::string language_batch_digest(const std::vector<WeightedSource>& sources, const LanguageStreamOptions& options,
                                  int64_t position) {
  check_stream_options(options, position);
  MixtureOrder order(sources, options.shape.decoder_len, options.seed);
  const LanguageBatch memory = internal::allocate_batch(1, options.shape, any_packed(sources), /*pinned=*/false);
  const LanguageRow row = internal::row_of(memory, 0);
  Hasher hasher;
  for (int64_t i = 0; i < options.global_batch_size; ++i) {
    const LanguagePick pick = order(position + i);
    sources[pick.source].source->row(pick.sample, row);
    hash(hasher, row.encoder_ids, row.shape.encoder_len);
    hash(hasher, row.encoder_mask, row.shape.encoder_len);
    hash(hasher, row.decoder_ids, row.shape.decoder_len);
    hash(hasher, row.labels, row.shape.decoder_len);
    hash(hasher, row.document_ids, row.shape.decoder_len);
    hash(hasher, row.position_ids, row.shape.decoder_len);
  }
  return hasher.hex();
}

int64_t position_after(const LanguageStreamOptions& options, int64_t position, int64_t count) {
  return position + count * options.global_batch_size;
}

int64_t epoch_samples(const std::vector<WeightedSource>& sources, int64_t decoder_len) {
  int64_t samples = 0;
  for (const WeightedSource& source : sources) samples += source.source->num_samples(decoder_len);
  return samples;
}

std::string sources_digest(const std::vector<WeightedSource>& sources) {
  Hasher hasher;
  for (const WeightedSource& source : sources) hasher.update(cat(source.source->digest(), " ", source.weight, "\n"));
  return hasher.hex();
}

void LanguageStreamBatch::release() {
  batch = {};
  buffer_.reset();
}

// The prefetch thread and its data.
class LanguageStream::Producer {
 public:
  Producer(const std::vector<WeightedSource>& sources, const LanguageStreamOptions& options, int64_t position)
      : sources_((check_stream_options(options, position), sources)),
        options_(options),
        position_(position),
        order_(sources_, options.shape.decoder_len, options.seed),
        rows_(options.global_batch_size / options.ranks),
        ring_(std::make_shared<internal::BufferRing<internal::LanguageBuffer>>("text")) {
    for (int64_t i = 0; i < options.prefetch_batches + kHeldLanguageBatches; ++i) {
      auto buffer = std::make_unique<internal::LanguageBuffer>();
      buffer->batch = internal::allocate_batch(rows_, options.shape, any_packed(sources_), options.pinned);
      ring_->add(std::move(buffer));
    }
    thread_ = std::thread([this] { run(); });
  }
  ~Producer() {
    ring_->stop();
    thread_.join();
  }
  internal::BufferRing<internal::LanguageBuffer>& ring() { return *ring_; }

 private:
  void run() {
    try {
      while (internal::LanguageBuffer* buffer = ring_->wait_free()) {
        fill(*buffer);
        ring_->push_ready(buffer);
      }
    } catch (...) {
      ring_->push_error(std::current_exception());
    }
  }

  void fill(internal::LanguageBuffer& buffer) {
    LanguageBatch& batch = buffer.batch;
    batch.encoder_tokens = batch.decoder_tokens = batch.label_tokens = 0;
    const int64_t first = position_ + options_.rank * rows_;
    for (int64_t row = 0; row < rows_; ++row) {
      const LanguagePick pick = order_(first + row);
      internal::add_counts(batch, sources_[pick.source].source->row(pick.sample, internal::row_of(batch, row)));
    }
    buffer.position_before = position_;
    position_ = position_after(options_, position_, 1);
    buffer.position_after = position_;
  }

  std::vector<WeightedSource> sources_;
  LanguageStreamOptions options_;
  int64_t position_;
  MixtureOrder order_;
  int64_t rows_;
  // Batches that the caller still holds keep the ring alive after this object is destroyed.
  std::shared_ptr<internal::BufferRing<internal::LanguageBuffer>> ring_;
  std::thread thread_;
};

LanguageStream::LanguageStream(const std::vector<WeightedSource>& sources, const LanguageStreamOptions& options,
                               int64_t position)
    : producer_(std::make_unique<Producer>(sources, options, position)) {}

LanguageStream::~LanguageStream() = default;

LanguageStreamBatch LanguageStream::next() {
  LanguageStreamBatch result;
  result.buffer_ = producer_->ring().next_ready(wait_ms_);
  result.batch = result.buffer_->batch;
  result.position_before = result.buffer_->position_before;
  result.position_after = result.buffer_->position_after;
  return result;
}

}  // namespace hrm::data
