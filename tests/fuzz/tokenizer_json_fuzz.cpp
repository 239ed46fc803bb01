// What is read is the same when it is written and read again; and a tokenizer of it gives ids back as the text that
// they were made of. The input is a tokenizer.json whose vocabulary lacks the bytes, which a target can hardly find:
// they are put in where "vocab":{ stands.
#include <algorithm>

#include "fuzz/fuzz.h"
#include "hrm/data/tokenizer.h"
#include "hrm/formats/byte_level.h"
#include "hrm/formats/tokenizer_json.h"

using namespace hrm;

namespace {

std::string with_bytes(std::string_view text) {
  static const std::string bytes = [] {
    std::string out;
    for (int byte = 0; byte < 256; ++byte) {
      const std::string token = byte_level_text(std::string(1, static_cast<char>(byte)));
      out += cat(byte ? "," : "", '"', token == "\"" || token == "\\" ? "\\" : "", token, "\":", byte);
    }
    return out;
  }();
  const std::string_view key = "\"vocab\":{";
  const size_t at = text.find(key);
  if (at == text.npos) return std::string(text);
  const size_t inside = at + key.size();
  const bool empty = text.substr(inside).starts_with('}');
  return cat(text.substr(0, inside), bytes, empty ? "" : ",", text.substr(inside));
}

// Whether decoding gives the text again that was encoded, which is in normalization form C.
bool keeps_all(const TokenizerJson& json) {
  const auto keeps = [](const PreTokenizerStep& step) {
    return step.behavior != SplitBehavior::removed && step.kind != PreTokenizerStep::Kind::whitespace &&
           !step.add_prefix_space;
  };
  const auto is_nfc = [](const NormalizerStep& step) { return step.kind == NormalizerStep::Kind::nfc; };
  return is_byte_level(json) && json.decoder == std::vector{DecoderStep()} &&
         std::all_of(json.pre_tokenizer.begin(), json.pre_tokenizer.end(), keeps) &&
         std::all_of(json.normalizers.begin(), json.normalizers.end(), is_nfc);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text = with_bytes(fuzz::text_of(data, size));
  TokenizerJson json;
  const bool read = fuzz::parses(ExitCode::data, [&] { json = parse_tokenizer_json(text, "x.json"); });
  if (!read) return 0;
  fuzz::check(parse_tokenizer_json(tokenizer_json_text(json), "x.json") == json, "the same tokenizer");
  fuzz::parses(ExitCode::data, [&] {
    const data::Tokenizer tokenizer(json, "x.json");
    for (const VocabularyEntry& entry : json.vocabulary) {
      fuzz::touch(entry.token);
      fuzz::check(tokenizer.id_of(entry.token) == entry.id, "each token is found");
    }
    const std::string sample = "It's 12 o'clock,  \n\ncaf\u00e9 ab<s>";
    const std::vector<int32_t> ids = tokenizer.encode(sample);
    const std::string decoded = tokenizer.decode(ids);
    fuzz::touch(decoded);
    const bool plain = json.added_tokens.empty() && keeps_all(json);
    fuzz::check(!plain || (!ids.empty() && ids.size() <= 4 * sample.size()), "some ids");
    fuzz::check(!plain || decoded == sample, "the text again");
    data::StreamDecoder stream(tokenizer);
    std::string streamed;
    for (const int32_t id : ids) streamed += stream.push(id);
    fuzz::check(streamed + stream.finish() == decoded, "the same text from a stream");
  });
  return 0;
}
