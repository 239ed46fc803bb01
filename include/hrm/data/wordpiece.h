#pragma once
// WordPiece, the tokenizer of BERT and sentence encoders (Devlin et al., arXiv 1810.04805), as Hugging Face's
// BertTokenizer does it. No torch here.
//
// Control characters are removed, and ideographs become separate words. If the model asks for it, letters become lower
// case and lose their accents. The rest is split at white space and punctuation. Each word is split into the longest
// pieces of the vocabulary from its beginning on, with ## in front of inner pieces. Lists of punctuation, marks and
// control characters are utf8proc's; the library's are older, so some characters of rare scripts differ.

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
  bool strip_accents = true;  // of text in lower case too, unless a file says otherwise
};

// Immutable; may be used by several threads.
class WordPiece {
 public:
  // From a folder: tokenizer.json, otherwise vocab.txt with the options of tokenizer_config.json (do_lower_case,
  // strip_accents, tokenize_chinese_chars; without that file those of uncased models). Throws Error(code), one
  // sentence: neither exists, or a file is malformed, holds a token twice, lacks [UNK], [CLS], [SEP] or [PAD], or needs
  // what this program does not support.
  static WordPiece load(const std::filesystem::path& folder, ExitCode code = ExitCode::data);
  // From the text of a tokenizer.json; or from that of a vocab.txt (a token per line), with that of a
  // tokenizer_config.json if there is one. Files of at most 64 MiB, 2^22 tokens. Origins: for messages. Throws as load.
  static WordPiece from_json(std::string_view text, const std::string& origin, ExitCode code = ExitCode::data);
  static WordPiece from_vocabulary(std::string_view text, const std::string& origin,
                                   std::optional<std::string_view> config, const std::string& config_origin,
                                   ExitCode code = ExitCode::data);
  // tokens: by their ids. `origin`: for messages.
  WordPiece(std::vector<std::string> tokens, const WordPieceOptions& options, const std::string& origin = "vocabulary",
            ExitCode code = ExitCode::data);

  // [CLS], the text's pieces, [SEP]; of a longer text the first max_length - 2 pieces. max_length must be at least 2.
  // Bytes that are not UTF-8 count as U+FFFD, which is dropped. As in the library, a special token written out in the
  // text, "[SEP]", becomes that token.
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
  size_t longest_ = 0;  // bytes of a token
  int32_t unk_ = 0, cls_ = 0, sep_ = 0, pad_ = 0;
};

}  // namespace hrm::data
