#pragma once
// Training batches of language data, prefetched by a thread, and evaluation batches. The rows depend only on data, seed
// and position, not on the prefetch depth. A rank's rows are its slice of the global batch.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "hrm/data/language_source.h"

namespace hrm::data {

struct LanguageStreamOptions {
  uint64_t seed = 0;
  LanguageShape shape;  // of every batch
  int64_t global_batch_size = 0;
  int64_t rank = 0;   // this rank reads a contiguous slice of the global batch
  int64_t ranks = 1;  // must divide global_batch_size
  int64_t prefetch_batches = 4;
  bool pinned = false;  // page-locked buffers, for asynchronous copies to a GPU
};

// Digest (XXH3-128, in hex) of the global batch that begins at `position`. Throws like a stream of these sources.
std::string language_batch_digest(const std::vector<WeightedSource>& sources, const LanguageStreamOptions& options,
                                  int64_t position);

// The position after the next `count` global batches.
int64_t position_after(const LanguageStreamOptions& options, int64_t position, int64_t count);

// Samples of all sources in an epoch, for rows of `decoder_len` positions.
int64_t epoch_samples(const std::vector<WeightedSource>& sources, int64_t decoder_len);

// Digest of the contents of all sources and their shares.
std::string sources_digest(const std::vector<WeightedSource>& sources);

namespace internal {
struct LanguageBuffer;
}

// A batch in one of the stream's buffers, like StreamBatch (hrm/data/stream.h). Hold it until nothing reads it.
class LanguageStreamBatch {
 public:
  LanguageBatch batch;          // CPU; this rank's rows, all valid
  int64_t position_before = 0;  // samples before this batch
  int64_t position_after = 0;   // position of the next batch; save it once the batch has been used

  LanguageStreamBatch() = default;
  LanguageStreamBatch(LanguageStreamBatch&&) noexcept = default;
  LanguageStreamBatch& operator=(LanguageStreamBatch&&) noexcept = default;
  // Returns the buffer; do not touch the tensors afterwards.
  void release();

 private:
  friend class LanguageStream;
  std::shared_ptr<internal::LanguageBuffer> buffer_;
};

// The constructor allocates, and pins, all memory in the calling thread. The prefetch thread makes no CUDA calls. There
// are prefetch_batches + 2 buffers, so the caller may hold two batches at a time.
class LanguageStream {
 public:
  // Starts at `position` (in samples; 0 at the beginning). Throws Error(usage) for invalid options, and Error(data) for
  // sources that do not fit together.
  LanguageStream(const std::vector<WeightedSource>& sources, const LanguageStreamOptions& options, int64_t position);
  ~LanguageStream();
  LanguageStream(const LanguageStream&) = delete;
  LanguageStream& operator=(const LanguageStream&) = delete;

  // Returns the next batch and waits until it is ready. Rethrows errors of the prefetch thread, e.g. Error(data).
  // Throws Error(unexpected) if the caller holds more than two batches.
  LanguageStreamBatch next();

  // Milliseconds that the last next() waited.
  double wait_ms() const { return wait_ms_; }

 private:
  class Producer;
  std::unique_ptr<Producer> producer_;
  double wait_ms_ = 0;
};

// A dataset to evaluate on, with its own name in the metrics.
struct ValidationSlice {
  std::string name;
  std::shared_ptr<const LanguageSource> source;
  int64_t max_samples = 0;  // use this many samples, evenly spaced over the source; 0 = all
};

struct LanguageReaderOptions {
  LanguageShape shape;  // the largest shape
  int64_t global_batch_size = 0;
  int64_t rank = 0;
  int64_t ranks = 1;  // must divide global_batch_size
  // Batches are padded only to the smallest of this many lengths that holds their longest row, separately for encoder
  // and decoder. The lengths are equally spaced up to `shape` and rounded up to multiples of 8, which gives few shapes
  // and little padding.
  int64_t buckets = 4;
  bool pinned = false;  // page-locked memory
};

struct LanguageTestBatch {
  LanguageBatch batch;            // this rank's rows, padded to global_batch_size / ranks
  int64_t global_valid_rows = 0;  // rows before padding on all ranks
  std::vector<int64_t> samples;   // (valid_rows) indices into the source
};

// Evaluation batches of one slice: all samples in order. Stateless: any thread may read any batch at any time. Padding
// rows have one unmasked encoder position, so that attention over it stays finite.
class LanguageReader {
 public:
  // Throws Error(usage) if ranks does not divide the batch, or for invalid sizes. Throws Error(data) for a source
  // without samples.
  LanguageReader(ValidationSlice slice, const LanguageReaderOptions& options);

  const std::string& name() const { return slice_.name; }
  int64_t num_samples() const { return samples_; }
  int64_t num_batches() const;
  // Batch `index` in newly allocated tensors. Throws Error(data) for a malformed record.
  LanguageTestBatch batch(int64_t index) const;

 private:
  int64_t sample_of(int64_t number) const;
  LanguageShape bucket_of(int64_t begin, int64_t end) const;

  ValidationSlice slice_;
  LanguageReaderOptions options_;
  int64_t samples_ = 0;
};

}  // namespace hrm::data
