#pragma once
// BPE tokenizers in the format of Hugging Face's tokenizer.json: text to ids and back, as the `tokenizers` library does
// it. With a ByteLevel step each byte is a character of GPT-2's alphabet in a token's text (hrm/formats/byte_level.h);
// otherwise tokens are made of characters. No torch here.
//
// Encoding: added tokens are cut out. The rest is normalized and split into words by the pre-tokenizer. Each word is
// merged from its bytes or characters (Sennrich et al., 2016, arXiv 1508.07909).

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hrm/base/error.h"
#include "hrm/formats/tokenizer_json.h"

namespace hrm::data {

// Immutable; copies share it, and all of its functions may be called by several threads at a time.
class Tokenizer {
 public:
  // Of a tokenizer.json, or of a folder (hrm/formats/tokenizer_folder.h). Throws Error(code): the file cannot be read,
  // is malformed, or asks for what this program does not know.
  static Tokenizer load(const std::filesystem::path& path, ExitCode code = ExitCode::data);
  // `origin`: for messages. Throws Error(code) for a pattern that this program does not know.
  explicit Tokenizer(TokenizerJson json, const std::string& origin = "tokenizer", ExitCode code = ExitCode::data);

  // The ids of a text; with `add_special` also those that the tokenizer's template puts around it. Throws Error(data)
  // where the text is no UTF-8, with the place: nothing is replaced silently.
  std::vector<int32_t> encode(std::string_view text, bool add_special = false) const;
  // Appends them to `out`.
  void encode(std::string_view text, std::vector<int32_t>& out, bool add_special = false) const;
  // Each text separately, over this many threads. An Error names the first text that has one, counted from 0.
  std::vector<std::vector<int32_t>> encode_batch(std::span<const std::string_view> texts, int threads,
                                                 bool add_special = false) const;

  // The text of ids. Bytes that are not UTF-8 become U+FFFD, one for each maximal part; in a run of tokens <0xXX> that
  // is not UTF-8, each does. With `skip_special` special tokens are left out. Throws Error(data) for an unknown id.
  std::string decode(std::span<const int32_t> ids, bool skip_special = false) const;
  // The bytes that a token stands for, at any place; decode() may leave out a space at the beginning. Throws
  // Error(data) for an unknown id.
  std::string_view bytes_of(int32_t id) const;

  // Bytes of white space at the beginning and end of the token that are not part of its place in a text, as the
  // post-processor of tokenizer.json says (trim_offsets). `first`: the token begins the text. Throws Error(data) for an
  // unknown id.
  std::pair<int64_t, int64_t> white_ends(int32_t id, bool first) const;

  // One more than the largest id: the rows of an embedding. Some ids below may be no token's.
  int32_t vocab_size() const;
  // By its text, as it is in tokenizer.json: "Ġthe", "<|im_end|>".
  std::optional<int32_t> id_of(std::string_view token) const;
  // Throws Error(data) for an id that is not a token's.
  const std::string& token_of(int32_t id) const;
  bool has(int32_t id) const;  // whether it is a token's
  // Whether it is a special token; false for an id that is not a token's.
  bool is_special(int32_t id) const;

  // XXH3-128 of the content, in hex: the same for files that differ in layout alone.
  const std::string& digest() const;
  const TokenizerJson& json() const;

 private:
  friend class StreamDecoder;
  struct State;
  std::shared_ptr<const State> state_;
};

// Ids one at a time into text, complete characters only. All that was returned together is what decode() gives.
class StreamDecoder {
 public:
  explicit StreamDecoder(Tokenizer tokenizer, bool skip_special = false);
  ~StreamDecoder();

  // What is certain after one more id; may be empty. Throws Error(data) for an id that is not a token's.
  std::string push(int32_t id);
  // The rest: U+FFFD where a character was begun and not finished. The next push begins a new text.
  std::string finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace hrm::data
