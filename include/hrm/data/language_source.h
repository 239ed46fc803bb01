#pragma once
// Where rows of language data come from: triples, packed text, or a mixture of several.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "hrm/data/language_batch.h"
#include "hrm/data/language_meta.h"

namespace hrm::data {

// The memory of one row. Encoder pointers are null when S is 0, those of documents in a batch without packed text.
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
// A row of padding: pad_id, mask false, labels kIgnoreLabel, document 0, positions counted.
void blank_row(const LanguageRow& row, int64_t pad_id);

// Immutable and safe to read from several threads.
class LanguageSource {
 public:
  virtual ~LanguageSource() = default;

  const LanguageMeta& meta() const { return meta_; }
  const std::string& origin() const { return origin_; }  // path, for messages
  // Samples when rows have `decoder_len` positions.
  virtual int64_t num_samples(int64_t decoder_len) const = 0;
  // Whether rows hold several documents, or parts of them.
  virtual bool packed() const { return false; }
  // Writes sample `index`, all positions of the row: what is shorter is padded, what is longer cut. Throws Error(data)
  // naming file and place for what is wrong.
  virtual LanguageCounts row(int64_t index, const LanguageRow& row) const = 0;
  // Ids that sample `index` has, which may be more than a row takes: for shapes that fit.
  virtual LanguageShape lengths(int64_t index, const LanguageShape& most) const = 0;
  // XXH3-128, hex, over all that training sees; not the path.
  virtual std::string digest() const = 0;

 protected:
  LanguageMeta meta_;
  std::string origin_;
};

// Sources that are read as one, in shares. Weights need not add up to 1; each share is exact to 2^-16.
struct WeightedSource {
  std::shared_ptr<const LanguageSource> source;
  double weight = 1;
};

// Which sample of which source.
struct LanguagePick {
  int64_t source = 0;
  int64_t sample = 0;
};

// The order of training samples as a function of (seed, number). The only state is the number of the next sample, for
// any number of sources or ranks.
//
// One source: epoch after epoch, each sample once, in the order of a CounterPermutation. Several: samples come in
// blocks of 2^16. Source s has a quota of a block's places by its weight, and a permutation of each block says which.
// So number n is visit (blocks before * quota + places of s before it in the block) of its source. The visits of a
// source go through its own epochs, as those of a single one do.
//
// Not thread-safe: it keeps the last block.
class MixtureOrder {
 public:
  // Throws Error(usage) for weights that are not positive or whose share is below 2^-16, Error(data) for a source
  // without samples.
  MixtureOrder(const std::vector<WeightedSource>& sources, int64_t decoder_len, uint64_t seed);
  LanguagePick operator()(int64_t number);

 private:
  void fill_block(int64_t block);

  std::vector<int64_t> samples_;      // of each source
  std::vector<int64_t> quota_begin_;  // (sources + 1) places of a block
  uint64_t seed_;
  int64_t block_ = -1;
  std::vector<LanguagePick> places_;  // of block_: source, and which of its quota
};

}  // namespace hrm::data
