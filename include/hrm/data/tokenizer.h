#pragma once
// BPE tokenizers in the tokenizer.json format of Hugging Face, equivalent to the `tokenizers` library. With a ByteLevel
// step, each character of a token is a byte in GPT-2's alphabet (hrm/formats/byte_level.h). Without it, tokens consist
// of ordinary characters.
// This header does not depend on torch.
//
// Encoding first cuts out added tokens. The rest is normalized and split into words by the pre-tokenizer. Each word is
// then merged from its bytes or characters (Sennrich et al., 2016, arXiv 1508.07909).

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

// Immutable and thread-safe; copies share state.
class Tokenizer {
 public:
  // Loads a tokenizer.json, or the tokenizer of a folder (hrm/formats/tokenizer_folder.h). Throws Error(code) if the
  // file cannot be read, is malformed or needs an unsupported feature.
  static Tokenizer load(const std::filesystem::path& path, ExitCode code = ExitCode::data);
  // `origin`: for messages. Throws Error(code) for an unsupported pattern.
  explicit Tokenizer(TokenizerJson json, const std::string& origin = "tokenizer", ExitCode code = ExitCode::data);

  // The ids of a text; with `add_special` also those that the tokenizer's template puts around it. Throws Error(data)
  // with the place if the text is not UTF-8; nothing is replaced silently.
  std::vector<int32_t> encode(std::string_view text, bool add_special = false) const;
  // Appends the ids to `out`.
  void encode(std::string_view text, std::vector<int32_t>& out, bool add_special = false) const;
  // Encodes each text separately, using this many threads. An Error names the first text that failed, counted from 0.
  std::vector<std::vector<int32_t>> encode_batch(std::span<const std::string_view> texts, int threads,
                                                 bool add_special = false) const;

  // The text of ids. Invalid UTF-8 becomes U+FFFD, one for each maximal part. In a run of <0xXX> tokens that is not
  // valid UTF-8, each token becomes one U+FFFD. With `skip_special`, special tokens are left out. Throws Error(data)
  // for an unknown id.
  std::string decode(std::span<const int32_t> ids, bool skip_special = false) const;
  // The bytes of a token, regardless of its place; decode() may drop a space at the beginning of a text. Throws
  // Error(data) for an unknown id.
  std::string_view bytes_of(int32_t id) const;

  // Bytes of white space at the token's ends that are not part of its span in a text, by the post-processor of
  // tokenizer.json (trim_offsets). `first`: the token begins the text. Throws Error(data) for an unknown id.
  std::pair<int64_t, int64_t> white_ends(int32_t id, bool first) const;

  // One more than the largest id: the number of embedding rows. Some ids below it may be unused.
  int32_t vocab_size() const;
  // The id of a token by its text in tokenizer.json, e.g. "Ġthe" or "<|im_end|>".
  std::optional<int32_t> id_of(std::string_view token) const;
  // Throws Error(data) for an unused id.
  const std::string& token_of(int32_t id) const;
  bool has(int32_t id) const;  // whether a token has this id
  // Whether the id is a special token; false for an unused id.
  bool is_special(int32_t id) const;

  // XXH3-128 of the content, in hex. Files that differ only in layout have the same digest.
  const std::string& digest() const;
  const TokenizerJson& json() const;

 private:
  friend class StreamDecoder;
  struct State;
  std::shared_ptr<const State> state_;
};

// Converts ids to text one at a time and returns only complete characters. All returned texts together equal decode().
class StreamDecoder {
 public:
  explicit StreamDecoder(Tokenizer tokenizer, bool skip_special = false);
  ~StreamDecoder();

  // The text that is certain after one more id; may be empty. Throws Error(data) for an unused id.
  std::string push(int32_t id);
  // The rest of the text; U+FFFD for an incomplete character. The next push begins a new text.
  std::string finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace hrm::data
