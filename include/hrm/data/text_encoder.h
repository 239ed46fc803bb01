#pragma once
// Converts text to ids: the interface between the builders of language data and the tokenizers.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hrm/data/language_meta.h"

namespace hrm::data {

// The ids of a text, without BOS or EOS.
using Encode = std::function<std::vector<int32_t>(std::string_view)>;
// The text of ids, for display; may be empty.
using Decode = std::function<std::string(const std::vector<int32_t>&)>;

// Converts ids to text one at a time and returns only complete characters.
class TextStream {
 public:
  virtual ~TextStream() = default;
  virtual std::string push(int32_t id) = 0;  // the text that is certain after one more id; may be empty
  virtual std::string finish() = 0;          // the rest, U+FFFD for an incomplete character; then a new text begins
};
using OpenStream = std::function<std::unique_ptr<TextStream>()>;

struct TextEncoder {
  Encode encode;
  Decode decode;
  // Bytes of text that an id stands for; 0 for special tokens and ids that are not tokens.
  std::function<int64_t(int32_t)> bytes;
  // Bytes of white space at the token's beginning and end that are not part of its span in a text. `first`: the token
  // begins the text. transformers uses these to decide which tokens are the assistant's.
  std::function<std::pair<int64_t, int64_t>(int32_t id, bool first)> white_ends;
  OpenStream stream;  // without special tokens; U+FFFD for ids that are not tokens
  // The id of a token by its text, e.g. "<|im_end|>". The byte encoder has no such tokens.
  std::function<std::optional<int32_t>(std::string_view)> id_of;
  std::vector<int32_t> leading =
      {};                      // what the post-processor of tokenizer.json puts in front of a text: BOS, or nothing
  LanguageMeta meta;           // tokenizer_file: its file name next to the data
  std::filesystem::path file;  // the file to copy there; empty: none
};

// Ids are the bytes of the text; BOS is 256, EOS 257, PAD 258. Needs no file and encodes any text.
TextEncoder byte_encoder();

// The encoder of `meta`: the file `folder`/tokenizer_file, or bytes; nullopt if unknown. Throws Error(data) like
// read_language_meta and open_tokenizer.
std::optional<TextEncoder> encoder_of(const LanguageMeta& meta, const std::filesystem::path& folder);

// Opens a tokenizer file. `eos` and `bos` are the texts of its special tokens; empty: none.
using OpenTokenizer =
    std::function<TextEncoder(const std::filesystem::path& file, const std::string& bos, const std::string& eos)>;
// Opens a tokenizer.json (hrm/data/tokenizer.h). Throws Error(data) like Tokenizer::load, and Error(usage) for a token
// that the file lacks.
TextEncoder open_tokenizer(const std::filesystem::path& file, const std::string& bos, const std::string& eos);

}  // namespace hrm::data
