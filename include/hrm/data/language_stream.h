#pragma once
// Training batches of language data, prepared ahead by a thread; and batches to evaluate. The rows depend only on data,
// seed and position, not on the prefetch depth. A rank's rows are its slice of the same global batch.

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
  int64_t rank = 0;   // this rank's contiguous slice of the global batch
  int64_t ranks = 1;  // must divide global_batch_size
  int64_t prefetch_batches = 4;
  bool pinned = false;  // page-locked buffers, for asynchronous copies to a GPU
};

// Digest (XXH3-128, hex) of the global batch that begins at `position`. Throws as a stream of these data.
std::string language_batch_digest(const std::vector<WeightedSource>& sources, const LanguageStreamOptions& options,
                                  int64_t position);

// The position behind the next `count` global batches.
int64_t position_after(const LanguageStreamOptions& options, int64_t position, int64_t count);

// Samples of all sources in an epoch, when rows have `decoder_len` positions.
int64_t epoch_samples(const std::vector<WeightedSource>& sources, int64_t decoder_len);

// Digest of what all sources hold and of their shares.
std::string sources_digest(const std::vector<WeightedSource>& sources);

namespace internal {
struct LanguageBuffer;
}

// A batch in one of the stream's buffers, as StreamBatch (hrm/data/stream.h): hold it until nothing reads it any more.
class LanguageStreamBatch {
 public:
  LanguageBatch batch;          // CPU; this rank's rows, all valid
  int64_t position_before = 0;  // samples before this batch
  int64_t position_after = 0;   // where to continue: state to save once the batch has been used

  LanguageStreamBatch() = default;
  LanguageStreamBatch(LanguageStreamBatch&&) noexcept = default;
  LanguageStreamBatch& operator=(LanguageStreamBatch&&) noexcept = default;
  // Gives the buffer back; the tensors must not be touched afterwards.
  void release();

 private:
  friend class LanguageStream;
  std::shared_ptr<internal::LanguageBuffer> buffer_;
};

// All memory is allocated, and pinned, by the constructor in the calling thread; the prefetch thread makes no CUDA
// calls. There are prefetch_batches + 2 buffers: the caller may hold two batches at a time.
class LanguageStream {
 public:
  // Starts at `position` (samples; 0 at the beginning). Throws Error(usage) for options, Error(data) for sources that
  // do not fit.
  LanguageStream(const std::vector<WeightedSource>& sources, const LanguageStreamOptions& options, int64_t position);
  ~LanguageStream();
  LanguageStream(const LanguageStream&) = delete;
  LanguageStream& operator=(const LanguageStream&) = delete;

  // The next batch; waits for it when it is not ready. Throws what went wrong in the prefetch thread, e.g. Error(data),
  // and Error(unexpected) when the caller holds more than two batches.
  LanguageStreamBatch next();

  // Milliseconds that the last next() waited.
  double wait_ms() const { return wait_ms_; }

 private:
  class Producer;
  std::unique_ptr<Producer> producer_;
  double wait_ms_ = 0;
};

// One of several data sets to evaluate on, with its own name in the metrics.
struct ValidationSlice {
  std::string name;
  std::shared_ptr<const LanguageSource> source;
  int64_t max_samples = 0;  // so many, spread evenly over the source; 0 = all
};

struct LanguageReaderOptions {
  LanguageShape shape;  // the largest
  int64_t global_batch_size = 0;
  int64_t rank = 0;
  int64_t ranks = 1;  // must divide global_batch_size
  // Batches are cut to the smallest of this many lengths that holds their longest row, separately for encoder and
  // decoder. The lengths are equally spaced up to `shape` and rounded up to multiples of 8: few shapes, little padding.
  int64_t buckets = 4;
  bool pinned = false;  // page-locked memory
};

struct LanguageTestBatch {
  LanguageBatch batch;            // this rank's rows, padded to global_batch_size / ranks
  int64_t global_valid_rows = 0;  // rows before padding over all ranks
  std::vector<int64_t> samples;   // (valid_rows) of the source
};

// Evaluation batches of one slice: all samples in order. Stateless: any batch can be read at any time, in any thread.
// Padding rows have one position of their encoder unmasked, so that attention over it stays finite.
class LanguageReader {
 public:
  // Throws Error(usage) when ranks does not divide the batch or for sizes that are none; Error(data) for a source
  // without samples.
  LanguageReader(ValidationSlice slice, const LanguageReaderOptions& options);

  const std::string& name() const { return slice_.name; }
  int64_t num_samples() const { return samples_; }
  int64_t num_batches() const;
  // Batch `index` in freshly allocated tensors. Throws Error(data) for a bad record.
  LanguageTestBatch batch(int64_t index) const;

 private:
  int64_t sample_of(int64_t number) const;
  LanguageShape bucket_of(int64_t begin, int64_t end) const;

  ValidationSlice slice_;
  LanguageReaderOptions options_;
  int64_t samples_ = 0;
};

}  // namespace hrm::data
