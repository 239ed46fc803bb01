#pragma once
// Triples of an encoder-decoder model: a folder with train.jsonl, val.jsonl (and test.jsonl) of records as
// hrm/formats/triples.h describes them, and meta.json.

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "hrm/config/data_settings.h"
#include "hrm/data/language_source.h"
#include "hrm/formats/jsonl.h"

namespace hrm::data {

struct TripleOptions {
  uint64_t max_malformed = 0;  // lines skipped, with their reason in the log, before it is an error
  // memory: all ids are read at the start; stream: lines are read when they are needed; auto: memory where the ids take
  // at most cache_bytes. The batches are the same.
  config::TripleCache cache = config::TripleCache::automatic;
  uint64_t cache_bytes = uint64_t{1} << 30;
  uint64_t line_bytes = kMaxJsonlLine;
  bool progress = false;
};

// Rows: encoder ids cut or padded to S, decoder ids and labels to T. Samples are the well-formed records of the file.
class TripleDataset : public LanguageSource {
 public:
  // `split`: train, val or test. Throws Error(data), one sentence, for a folder, a meta.json or a file that is wrong,
  // with file:line for records.
  TripleDataset(const std::filesystem::path& folder, const std::string& split, const TripleOptions& options = {});

  int64_t num_samples(int64_t) const override { return static_cast<int64_t>(index_.records()); }
  LanguageCounts row(int64_t index, const LanguageRow& row) const override;
  LanguageShape lengths(int64_t index, const LanguageShape& most) const override;
  std::string digest() const override;

  // Ids of record `index`.
  struct Record {
    std::vector<int32_t> encoder_ids, decoder_ids, labels;
  };
  Record record(int64_t index) const;
  // Tokens of a record, uncut.
  LanguageShape record_lengths(int64_t index) const;
  // How many records have more ids than such rows take: what a training should say before it begins.
  int64_t cut_records(const LanguageShape& shape) const;
  uint64_t malformed() const { return index_.malformed.size(); }
  bool cached() const { return !cache_.empty(); }

 private:
  // `encoder_count` etc. ids, at most what the record has.
  void read(int64_t index, int64_t encoder_count, int64_t decoder_count, int32_t* encoder, int32_t* decoder,
            int32_t* labels) const;

  MappedFile file_;
  uint64_t line_bytes_;
  JsonlIndex index_;
  // When cached: encoder ids, decoder ids and labels of each record, one after the other.
  std::vector<int32_t> cache_;
  std::vector<uint64_t> cache_begin_;  // (records)
};

// True for a folder that holds triples (train.jsonl, val.jsonl or test.jsonl beside meta.json).
bool is_triple_folder(const std::filesystem::path& folder);

}  // namespace hrm::data
