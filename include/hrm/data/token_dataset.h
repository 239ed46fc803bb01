#pragma once
// Packed text: shards of tokens, document after document, each ended by EOS. `hrm_train data text` writes the folder:
// - <split>-00000.npy: uint16 or uint32, (N)
// - <split>-00000.documents.npy: int64, (D): where documents begin in the shard
// - meta.json

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "hrm/data/language_source.h"
#include "hrm/formats/npy.h"

namespace hrm::data {

struct TokenOptions {
  // For models with attention inside documents, which use the batch's document_ids. A label is ignored if its token
  // begins another document. Encoder ids come only from the document at the row's start.
  bool document_masks = false;
};

// The shards of a split form one sequence of N tokens. Sample i covers the tokens i T .. i T + T: T decoder ids, and
// labels shifted by one. With S > 0 the encoder ids are the S tokens before them, which the decoder's text continues.
// At the beginning there are fewer. If there are none, one BOS (or EOS, or padding) replaces them, so that the encoder
// never sees an empty row. There are (N - 1) / T samples; the rest of the tokens is not used.
class TokenDataset : public LanguageSource {
 public:
  // Memory-maps the shards. Throws Error(data), one sentence, for missing files or files that do not match meta.json.
  TokenDataset(const std::filesystem::path& folder, const std::string& split, const TokenOptions& options = {});

  int64_t num_samples(int64_t decoder_len) const override;
  bool packed() const override { return true; }
  int64_t most_documents(int64_t decoder_len) const override;
  LanguageCounts row(int64_t index, const LanguageRow& row) const override;
  LanguageShape lengths(int64_t index, const LanguageShape& most) const override;
  std::string digest() const override;
  // Reads all shards and compares their digests with meta.json. Throws Error(data) naming the first one that differs.
  void verify() const;

  int64_t num_tokens() const { return token_begin_.back(); }
  int64_t num_documents() const { return static_cast<int64_t>(documents_.size()); }
  int64_t num_shards() const { return static_cast<int64_t>(shards_.size()); }
  // Reads tokens begin .. begin + count - 1. Throws Error(data) naming shard and place for an id outside the
  // vocabulary.
  void tokens(int64_t begin, int64_t count, int32_t* out) const;
  // The first token of document `index`, and one past its last.
  int64_t document_begin(int64_t index) const { return documents_[index]; }
  int64_t document_end(int64_t index) const {
    return index + 1 < num_documents() ? documents_[index + 1] : num_tokens();
  }

 private:
  struct Shard {
    std::string digest;
    NpyFile file;
  };
  void add_shard(const std::filesystem::path& folder, const TokenShard& facts);
  // The number of documents that begin at or before `token`.
  int64_t documents_until(int64_t token) const;

  TokenOptions options_;
  std::vector<Shard> shards_;
  std::vector<int64_t> token_begin_{0};  // (shards + 1)
  std::vector<int64_t> documents_;       // first tokens, ascending
};

}  // namespace hrm::data
