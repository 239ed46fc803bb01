#pragma once
// Training batches of prompts and responses, padded to a few lengths. Each batch also names the examples in its rows,
// so that completions can be sampled for them. For rows of one fixed length, pass a ChatSource to LanguageStream
// (hrm/data/language_stream.h) instead.

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "hrm/data/chat_source.h"
#include "hrm/data/language_batch.h"

namespace hrm::data {

struct ChatBatchOptions {
  uint64_t seed = 0;
  int64_t global_batch_size = 0;
  int64_t rank = 0;   // this rank reads a contiguous slice of the global batch
  int64_t ranks = 1;  // must divide global_batch_size
  // T is the smallest of `buckets` lengths that holds the longest row of the global batch. The lengths are equally
  // spaced up to max_len and rounded up to multiples of `multiple`, which gives few shapes and little padding.
  int64_t max_len = 512;
  int64_t buckets = 4;
  int64_t multiple = 8;
  // In the end T is rounded up to a multiple of this, even above max_len. Not part of the order.
  int64_t pad_to = 1;
  // Examples of this many batches are sorted by length before batching, so that a batch has similar lengths. 1 means
  // random batches.
  int64_t pool_batches = 1;
  bool pinned = false;  // page-locked memory
};

struct ChatBatch {
  LanguageBatch rows;  // on the CPU; this rank's B rows of T positions, all valid; no encoder side
  // (B) int64: prompt tokens of the row's first example. The first label is at this position minus 1.
  at::Tensor prompt_lengths;
  at::Tensor lengths;             // (B) int64: positions before the padding
  std::vector<int64_t> examples;  // (B) the row's first example, as an index into the dataset
  int64_t position_before = 0;    // samples before this batch
  int64_t position_after = 0;     // position of the next batch; the only state of the order
};

// The order equals that of LanguageStream: a function of (seed, position), with each example once per epoch. With
// pools, the samples of a pool are taken in that order, sorted by length and cut into batches; the batches are then
// shuffled. A pool at the end of an epoch therefore holds examples of two epochs. Not thread-safe: the last pool is
// cached.
class ChatBatches {
 public:
  // Throws Error(usage) for invalid options.
  ChatBatches(std::shared_ptr<const ChatSource> source, const ChatBatchOptions& options);

  // Returns the batch that begins at `position`, in newly allocated tensors. With pools, throws Error(usage) if no
  // batch begins at `position`: a run must resume with its original batch size.
  ChatBatch batch(int64_t position);

 private:
  std::vector<int64_t> samples_at(int64_t position);  // (global_batch_size) samples of the source
  void fill_pool(int64_t pool);

  std::shared_ptr<const ChatSource> source_;
  ChatBatchOptions options_;
  MixtureOrder order_;
  int64_t pool_ = -1;
  std::vector<int64_t> pooled_;  // samples of pool_, batch after batch
};

}  // namespace hrm::data
