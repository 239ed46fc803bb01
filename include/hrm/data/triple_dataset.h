#pragma once
// Triples for an encoder-decoder model: a folder with meta.json, train.jsonl, val.jsonl and optionally test.jsonl.
// hrm/formats/triples.h describes the records.

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "hrm/config/data_settings.h"
#include "hrm/data/language_source.h"
#include "hrm/formats/jsonl.h"

namespace hrm::data {

struct TripleOptions {
  uint64_t max_malformed = 0;  // malformed lines to skip, with the reason in the log, before failing
  // memory: read all ids at the start; stream: read lines on demand; auto: memory if the ids fit into cache_bytes. The
  // batches are the same.
  config::TripleCache cache = config::TripleCache::automatic;
  uint64_t cache_bytes = uint64_t{1} << 30;
  uint64_t line_bytes = kMaxJsonlLine;
  bool progress = false;
};

// Rows: encoder ids are cut or padded to S, decoder ids and labels to T. Samples are the well-formed records of the
// file.
class TripleDataset : public LanguageSource {
 public:
  // `split`: train, val or test. Throws Error(data), one sentence, for a missing or malformed folder, meta.json or data
  // file; for records the message has file:line.
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
  // Tokens of a record before cutting.
  LanguageShape record_lengths(int64_t index) const;
  // Number of records longer than rows of this shape; training logs it at the start.
  int64_t cut_records(const LanguageShape& shape) const;
  uint64_t malformed() const { return index_.malformed.size(); }
  bool cached() const { return !cache_.empty(); }

 private:
  // Reads `encoder_count` encoder ids and `decoder_count` decoder ids and labels; the record must have that many.
  void read(int64_t index, int64_t encoder_count, int64_t decoder_count, int32_t* encoder, int32_t* decoder,
            int32_t* labels) const;

  MappedFile file_;
  uint64_t line_bytes_;
  JsonlIndex index_;
  // If cached: the encoder ids, decoder ids and labels of all records, concatenated.
  std::vector<int32_t> cache_;
  std::vector<uint64_t> cache_begin_;  // (records)
};

// True for a folder of triples: train.jsonl, val.jsonl or test.jsonl next to meta.json.
bool is_triple_folder(const std::filesystem::path& folder);

}  // namespace hrm::data
