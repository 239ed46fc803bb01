#pragma once
// WordPiece, the tokenizer of BERT and sentence encoders (Devlin et al., arXiv 1810.04805), equivalent to Hugging
// Face's BertTokenizer.
// This header does not depend on torch.
//
// Control characters are removed, and ideographs become separate words. If the model asks for it, letters become lower
// case and lose their accents. The rest is split at white space and punctuation. Each word is split greedily, from its
// beginning, into the longest pieces of the vocabulary; inner pieces begin with ##. Punctuation, marks and control
// characters are classified by utf8proc, which has a newer Unicode version than the library, so some characters of rare
// scripts differ.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "hrm/base/error.h"

namespace hrm::data {

struct WordPieceOptions {
  bool clean_text = true;
  bool handle_chinese_chars = true;
  bool lowercase = true;
  bool strip_accents = true;  // also for lower-cased text, unless a file says otherwise
};

// Immutable and thread-safe.
class WordPiece {
 public:
  // Loads tokenizer.json, otherwise vocab.txt with the options in tokenizer_config.json (do_lower_case, strip_accents,
  // tokenize_chinese_chars). Without that file, the options of uncased models apply.
  // Throws Error(code), one sentence, if neither file exists, or if a file is malformed or needs an unsupported
  // feature. A duplicate token, or a missing [UNK], [CLS], [SEP] or [PAD], is also an error.
  static WordPiece load(const std::filesystem::path& folder, ExitCode code = ExitCode::data);
  // From the text of a tokenizer.json, or from that of a vocab.txt (one token per line) and an optional
  // tokenizer_config.json. Files have at most 64 MiB and 2^22 tokens. Origins: for messages. Throws like load.
  static WordPiece from_json(std::string_view text, const std::string& origin, ExitCode code = ExitCode::data);
  static WordPiece from_vocabulary(std::string_view text, const std::string& origin,
                                   std::optional<std::string_view> config, const std::string& config_origin,
                                   ExitCode code = ExitCode::data);
  // `tokens` are indexed by id. `origin`: for messages.
  WordPiece(std::vector<std::string> tokens, const WordPieceOptions& options, const std::string& origin = "vocabulary",
            ExitCode code = ExitCode::data);

  // Returns [CLS], the first max_length - 2 pieces of the text, and [SEP]. max_length must be at least 2. Invalid UTF-8
  // counts as U+FFFD, which is dropped. As in the library, a special token spelled out in the text, e.g. "[SEP]",
  // becomes that token.
  std::vector<int32_t> encode(std::string_view text, int64_t max_length) const;

  int64_t vocab_size() const { return static_cast<int64_t>(tokens_.size()); }
  int32_t pad_id() const { return pad_; }
  const std::string& token_of(int32_t id) const { return tokens_.at(static_cast<size_t>(id)); }

 private:
  void add_text(std::string_view text, int64_t most, std::vector<int32_t>& ids) const;
  void add_word(const std::u32string& word, std::vector<int32_t>& ids) const;

  WordPieceOptions options_;
  std::vector<std::string> tokens_;
  std::unordered_map<std::string, int32_t> ids_;
  std::vector<std::pair<std::string, int32_t>> special_;
  size_t longest_ = 0;  // bytes of the longest token
  int32_t unk_ = 0, cls_ = 0, sep_ = 0, pad_ = 0;
};

}  // namespace hrm::data
