#pragma once
// Text to ids, whatever does it: the interface between the builders of language data and tokenizers.

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

// Ids of a text, without BOS or EOS.
using Encode = std::function<std::vector<int32_t>(std::string_view)>;
// The text of ids, as well as it can be shown; may be empty.
using Decode = std::function<std::string(const std::vector<int32_t>&)>;

// Ids one at a time into text, whole characters alone.
class TextStream {
 public:
  virtual ~TextStream() = default;
  virtual std::string push(int32_t id) = 0;  // what is certain after one more id; may be empty
  virtual std::string finish() = 0;          // the rest: U+FFFD for a character that was begun; then a new text begins
};
using OpenStream = std::function<std::unique_ptr<TextStream>()>;

struct TextEncoder {
  Encode encode;
  Decode decode;
  // Bytes of text that an id stands for; 0 for special tokens and ids that are not tokens.
  std::function<int64_t(int32_t)> bytes;
  // White space at the token's beginning and end that does not count as part of its place in a text. `first`: the token
  // begins the text. transformers uses it to decide which tokens the assistant said.
  std::function<std::pair<int64_t, int64_t>(int32_t id, bool first)> white_ends;
  OpenStream stream;  // without special tokens; U+FFFD for ids that are not tokens
  // The id of a token by its text, "<|im_end|>"; none of the bytes has one.
  std::function<std::optional<int32_t>(std::string_view)> id_of;
  std::vector<int32_t> leading =
      {};                      // what the post-processor of tokenizer.json puts in front of a text: BOS, or nothing
  LanguageMeta meta;           // tokenizer_file: its name beside the data
  std::filesystem::path file;  // to be copied there; empty: there is none
};

// The bytes of the text, then BOS 256, EOS 257, PAD 258. No file, and right for every text.
TextEncoder byte_encoder();

// What made the ids of `meta`: the file `folder`/tokenizer_file, or bytes; nullopt where that is not known. Throws
// Error(data) as read_language_meta and open_tokenizer.
std::optional<TextEncoder> encoder_of(const LanguageMeta& meta, const std::filesystem::path& folder);

// Opens a tokenizer's file. `eos` and `bos` name its special tokens; empty: there is none.
using OpenTokenizer =
    std::function<TextEncoder(const std::filesystem::path& file, const std::string& bos, const std::string& eos)>;
// A tokenizer.json (hrm/data/tokenizer.h). Throws Error(data) as Tokenizer::load, Error(usage) for a token that it
// lacks.
TextEncoder open_tokenizer(const std::filesystem::path& file, const std::string& bos, const std::string& eos);

}  // namespace hrm::data
