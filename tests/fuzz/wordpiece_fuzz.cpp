// The first byte chooses what is read: a tokenizer.json, or a vocab.txt with or without a tokenizer_config.json. Zero
// bytes part file, configuration and a text, which is then cut into pieces.
#include "fuzz/fuzz.h"
#include "hrm/data/wordpiece.h"

using namespace hrm;

namespace {

void cut(const data::WordPiece& tokenizer, std::string_view text) {
  constexpr int64_t kMost = 48;
  const std::vector<int32_t> ids = tokenizer.encode(text, kMost);
  fuzz::check(ids.size() >= 2 && ids.size() <= kMost, "as many ids as were asked for");
  for (const int32_t id : ids) {
    fuzz::check(id >= 0 && id < tokenizer.vocab_size(), "an id of the vocabulary");
    fuzz::touch(tokenizer.token_of(id));
  }
  fuzz::check(tokenizer.token_of(ids.front()) == "[CLS]" && tokenizer.token_of(ids.back()) == "[SEP]",
              "a sentence between its ends");
  const std::vector<int32_t> more = tokenizer.encode(text, 2 * kMost);
  fuzz::check(more.size() >= ids.size() && std::equal(ids.begin(), ids.end() - 1, more.begin()),
              "more room changes nothing of what was there");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  std::string_view rest = fuzz::text_of(data + 1, size - 1);
  const auto next = [&] {
    const size_t end = std::min(rest.find('\0'), rest.size());
    const std::string_view part = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    return part;
  };
  const std::string_view file = next(), config = next();
  fuzz::parses(ExitCode::data, [&] {
    if ((data[0] & 1) != 0) {
      cut(data::WordPiece::from_json(file, "tokenizer.json"), rest);
    } else {
      const bool with = (data[0] & 2) != 0;
      cut(data::WordPiece::from_vocabulary(file, "vocab.txt", with ? std::optional(config) : std::nullopt, "config"),
          rest);
    }
  });
  return 0;
}
