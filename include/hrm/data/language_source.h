#pragma once
// Sources of language data rows: triples, packed text, or a mixture of several.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "hrm/data/language_batch.h"
#include "hrm/data/language_meta.h"

namespace hrm::data {

// The memory of one row. Encoder pointers are null if S is 0. Document pointers are null unless the batch has packed
// text.
struct LanguageRow {
  LanguageShape shape;
  int64_t* encoder_ids = nullptr;   // (S)
  bool* encoder_mask = nullptr;     // (S)
  int64_t* decoder_ids = nullptr;   // (T)
  int64_t* labels = nullptr;        // (T)
  int32_t* document_ids = nullptr;  // (T)
  int32_t* position_ids = nullptr;  // (T)
};
struct LanguageCounts {
  int64_t encoder_tokens = 0, decoder_tokens = 0, label_tokens = 0;
  void operator+=(const LanguageCounts& other) {
    encoder_tokens += other.encoder_tokens;
    decoder_tokens += other.decoder_tokens;
    label_tokens += other.label_tokens;
  }
};
// Fills a row with padding: pad_id, mask false, labels kIgnoreLabel, document 0, positions 0..T-1.
void blank_row(const LanguageRow& row, int64_t pad_id);

// Immutable and safe to read from several threads.
class LanguageSource {
 public:
  virtual ~LanguageSource() = default;

  const LanguageMeta& meta() const { return meta_; }
  const std::string& origin() const { return origin_; }  // path, for messages
  // Number of samples for rows of `decoder_len` positions.
  virtual int64_t num_samples(int64_t decoder_len) const = 0;
  // Whether rows hold several documents or parts of documents.
  virtual bool packed() const { return false; }
  // The most documents in a row of `decoder_len` positions, padding counted as one.
  virtual int64_t most_documents(int64_t /*decoder_len*/) const { return 1; }
  // Writes sample `index` to all positions of the row, padded or cut to its length. Returns the token counts. Throws
  // Error(data) naming file and place for malformed data.
  virtual LanguageCounts row(int64_t index, const LanguageRow& row) const = 0;
  // Tokens in sample `index`, possibly more than a row holds; for choosing shapes that fit.
  virtual LanguageShape lengths(int64_t index, const LanguageShape& most) const = 0;
  // XXH3-128, in hex, of everything that training sees, but not the path.
  virtual std::string digest() const = 0;

 protected:
  LanguageMeta meta_;
  std::string origin_;
};

// A source with its weight in a mixture. Weights need not add up to 1; each share is exact to 2^-16.
struct WeightedSource {
  std::shared_ptr<const LanguageSource> source;
  double weight = 1;
};

// The most documents in a row of any of them.
int64_t most_documents(const std::vector<WeightedSource>& sources, int64_t decoder_len);

// One sample of one source.
struct LanguagePick {
  int64_t source = 0;
  int64_t sample = 0;
};

// The order of training samples as a function of (seed, number). The only state is the number of the next sample,
// whatever the number of sources or ranks.
//
// With one source, each epoch visits every sample once, in the order of a CounterPermutation. With several sources,
// samples come in blocks of 2^16. Each source has a quota of a block by its weight, and a permutation of the block
// places the quotas. Number n is therefore visit (blocks before * quota + places of the source before it in the block)
// of its source. The visits of a source run through its own epochs.
//
// Not thread-safe: the last block is cached.
class MixtureOrder {
 public:
  // Throws Error(usage) for a weight that is not positive or whose share is below 2^-16. Throws Error(data) for a
  // source without samples.
  MixtureOrder(const std::vector<WeightedSource>& sources, int64_t decoder_len, uint64_t seed);
  LanguagePick operator()(int64_t number);

 private:
  void fill_block(int64_t block);

  std::vector<int64_t> samples_;      // of each source
  std::vector<int64_t> quota_begin_;  // (sources + 1) offsets of the quotas in a block
  uint64_t seed_;
  int64_t block_ = -1;
  std::vector<LanguagePick> places_;  // of block_: source, and index within its quota
};

}  // namespace hrm::data
