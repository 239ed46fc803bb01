#pragma once
// Training batches of prompts and responses with lengths that fit them, and the examples behind their rows, from which
// answers are sampled. For rows of one length LanguageStream (hrm/data/language_stream.h) takes a ChatSource as it is.

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "hrm/data/chat_source.h"
#include "hrm/data/language_batch.h"

namespace hrm::data {

struct ChatBatchOptions {
  uint64_t seed = 0;
  int64_t global_batch_size = 0;
  int64_t rank = 0;   // this rank's contiguous slice of the global batch
  int64_t ranks = 1;  // must divide global_batch_size
  // T of a batch is the smallest of `buckets` lengths that holds the longest row of the global batch. The lengths are
  // equally spaced up to max_len and rounded up to multiples of `multiple`: few shapes, little padding.
  int64_t max_len = 512;
  int64_t buckets = 4;
  int64_t multiple = 8;
  // Examples of this many batches are dealt out by length, so that a batch has similar lengths; 1: at random.
  int64_t pool_batches = 1;
  bool pinned = false;  // page-locked memory
};

struct ChatBatch {
  LanguageBatch rows;  // CPU; this rank's B rows of T positions, all valid; no encoder side
  // (B) int64: ids of the prompt, of the first example of a packed row; the first label is at this position less one
  at::Tensor prompt_lengths;
  at::Tensor lengths;             // (B) int64: positions in front of the padding
  std::vector<int64_t> examples;  // (B) of the dataset: the first of each row
  int64_t position_before = 0;    // samples before this batch
  int64_t position_after = 0;     // where to continue: the only state
};

// The order is that of LanguageStream: a function of (seed, position), epoch after epoch, each example once. With
// pools, a pool's samples are taken in that order, sorted by length and cut into batches, whose order is drawn. So a
// pool at the border of two epochs holds examples of both. Not thread-safe: keeps the last pool.
class ChatBatches {
 public:
  // Throws Error(usage) for options that are none.
  ChatBatches(std::shared_ptr<const ChatSource> source, const ChatBatchOptions& options);

  // The batch that begins at `position`, in freshly allocated tensors. Throws Error(usage), with pools, for a position
  // at which no batch begins: a run that continues has the batch size that it had.
  ChatBatch batch(int64_t position);

 private:
  std::vector<int64_t> samples_at(int64_t position);  // (global_batch_size) of the source
  void fill_pool(int64_t pool);

  std::shared_ptr<const ChatSource> source_;
  ChatBatchOptions options_;
  MixtureOrder order_;
  int64_t pool_ = -1;
  std::vector<int64_t> pooled_;  // samples of pool_, batch after batch
};

}  // namespace hrm::data
