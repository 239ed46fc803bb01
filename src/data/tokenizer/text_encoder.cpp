#include "hrm/data/text_encoder.h"

#include <algorithm>

#include "data/tokenizer/unicode.h"
#include "hrm/base/error.h"
#include "hrm/base/text.h"
#include "hrm/data/tokenizer.h"

namespace hrm::data {
namespace {

constexpr int64_t kByteValues = 256;

class ByteStream : public TextStream {
 public:
  std::string push(int32_t id) override {
    std::string text;
    if (id < 0 || id >= kByteValues) return text;
    pending_ += static_cast<char>(id);
    pending_.erase(0, append_utf8_lossy(pending_, /*complete=*/false, text));
    return text;
  }
  std::string finish() override {
    std::string text;
    append_utf8_lossy(pending_, /*complete=*/true, text);
    pending_.clear();
    return text;
  }

 private:
  std::string pending_;
};

class TokenStream : public TextStream {
 public:
  explicit TokenStream(const Tokenizer& tokenizer)
      : tokenizer_(tokenizer), decoder_(tokenizer, /*skip_special=*/true) {}
  std::string push(int32_t id) override {
    if (tokenizer_.has(id)) return decoder_.push(id);
    return decoder_.finish() + "\uFFFD";
  }
  std::string finish() override { return decoder_.finish(); }

 private:
  Tokenizer tokenizer_;
  StreamDecoder decoder_;
};

}  // namespace

TextEncoder byte_encoder() {
  TextEncoder encoder;
  encoder.encode = [](std::string_view text) {
    std::vector<int32_t> ids(text.size());
    for (size_t i = 0; i < text.size(); ++i) ids[i] = static_cast<unsigned char>(text[i]);
    return ids;
  };
  encoder.decode = [](const std::vector<int32_t>& ids) {
    std::string text;
    for (const int32_t id : ids) {
      if (id >= 0 && id < kByteValues) text += static_cast<char>(id);
    }
    return text;
  };
  encoder.bytes = [](int32_t id) { return id >= 0 && id < kByteValues ? int64_t{1} : int64_t{0}; };
  encoder.white_ends = [](int32_t, bool) { return std::pair<int64_t, int64_t>(); };
  encoder.stream = [] { return std::make_unique<ByteStream>(); };
  encoder.id_of = [](std::string_view) { return std::optional<int32_t>(); };
  encoder.meta.bos_id = kByteValues;
  encoder.meta.eos_id = kByteValues + 1;
  encoder.meta.pad_id = kByteValues + 2;
  encoder.meta.vocab_size = kByteValues + 3;
  encoder.meta.tokenizer_file = kByteTokenizer;
  return encoder;
}

TextEncoder open_tokenizer(const std::filesystem::path& file, const std::string& bos, const std::string& eos) {
  const Tokenizer tokenizer = Tokenizer::load(file);
  const auto special = [&](const std::string& token, const char* option) -> int64_t {
    if (token.empty()) return -1;
    const std::optional<int32_t> id = tokenizer.id_of(token);
    require(id.has_value(), ExitCode::usage, option, " '", printable_start(token), "': '", file.string(),
            "' has no such token");
    return *id;
  };
  TextEncoder encoder;
  encoder.encode = [tokenizer](std::string_view text) { return tokenizer.encode(text); };
  encoder.decode = [tokenizer](const std::vector<int32_t>& ids) { return tokenizer.decode(ids); };
  encoder.bytes = [tokenizer](int32_t id) -> int64_t {
    if (id < 0 || id >= tokenizer.vocab_size() || tokenizer.is_special(id)) return 0;
    try {
      return static_cast<int64_t>(tokenizer.bytes_of(id).size());
    } catch (const Error&) {
      return 0;  // unused id
    }
  };
  encoder.white_ends = [tokenizer](int32_t id, bool first) { return tokenizer.white_ends(id, first); };
  encoder.stream = [tokenizer] { return std::make_unique<TokenStream>(tokenizer); };
  encoder.id_of = [tokenizer](std::string_view token) { return tokenizer.id_of(token); };
  // The ids around a text come from its template, so any text shows them.
  const std::vector<int32_t> around = tokenizer.encode("a", /*add_special=*/true), text = tokenizer.encode("a");
  const auto place = std::search(around.begin(), around.end(), text.begin(), text.end());
  encoder.leading.assign(around.begin(), text.empty() ? around.begin() : place);
  encoder.file = file;
  encoder.meta.vocab_size = tokenizer.vocab_size();
  encoder.meta.bos_id = special(bos, "--bos");
  encoder.meta.eos_id = special(eos, "--eos");
  // Padding is masked and never learned, so any id works: <pad> if it exists, otherwise EOS, otherwise 0.
  const std::optional<int32_t> pad = tokenizer.id_of("<pad>");
  encoder.meta.pad_id = pad ? *pad : encoder.meta.eos_id >= 0 ? encoder.meta.eos_id : 0;
  return encoder;
}

std::optional<TextEncoder> encoder_of(const LanguageMeta& meta, const std::filesystem::path& folder) {
  if (meta.tokenizer_file.empty()) return std::nullopt;
  TextEncoder encoder =
      meta.tokenizer_file == kByteTokenizer ? byte_encoder() : open_tokenizer(folder / meta.tokenizer_file, "", "");
  require(encoder.meta.vocab_size <= meta.vocab_size, ExitCode::data, "the tokenizer '", encoder.file.string(),
          "' has ", encoder.meta.vocab_size, " ids, more than the ", meta.vocab_size,
          " of the data or model that it stands beside");
  encoder.meta = meta;
  return encoder;
}

}  // namespace hrm::data
