// What a record holds: ids of the vocabulary, as many as it says, and the same when they are written and read again.
#include <vector>

#include "fuzz/fuzz.h"
#include "hrm/formats/triples.h"

using namespace hrm;

namespace {

constexpr int64_t kVocabulary = 300;

std::vector<int32_t> ids_of(std::string_view array, uint32_t count) {
  fuzz::touch(array);
  std::vector<int32_t> ids(count, -1);
  read_ids(array, ids.data(), count);
  return ids;
}

std::string text_of(const std::vector<int32_t>& ids) {
  std::string text;
  for (const int32_t id : ids) text += (text.empty() ? "" : ",") + std::to_string(id);
  return "[" + text + "]";
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view line = fuzz::text_of(data, size);
  fuzz::parses(ExitCode::data, [&] {
    const TripleLimits limits{.vocab_size = kVocabulary, .tokens = 64};
    const Triple one = parse_triple(line, limits, ExitCode::data);
    fuzz::check(one.encoder_tokens >= 1 && one.encoder_tokens <= 64, "some ids");
    fuzz::check(one.decoder_tokens >= 1 && one.decoder_tokens <= 64, "some ids");
    const auto encoder = ids_of(one.encoder_ids, one.encoder_tokens);
    const auto decoder = ids_of(one.decoder_ids, one.decoder_tokens);
    const auto labels = ids_of(one.labels, one.decoder_tokens);
    for (const auto* ids : {&encoder, &decoder}) {
      for (const int32_t id : *ids) fuzz::check(id >= 0 && id < kVocabulary, "an id of the vocabulary");
    }
    for (const int32_t id : labels) fuzz::check(id == -100 || (id >= 0 && id < kVocabulary), "a label");
    const std::string text = "{\"input_ids\":" + text_of(encoder) + ",\"decoder_input_ids\":" + text_of(decoder) +
                             ",\"targets\":" + text_of(labels) + "}";
    const Triple again = parse_triple(text, limits, ExitCode::data);
    fuzz::check(ids_of(again.encoder_ids, again.encoder_tokens) == encoder, "the same encoder ids");
    fuzz::check(ids_of(again.decoder_ids, again.decoder_tokens) == decoder, "the same decoder ids");
    fuzz::check(ids_of(again.labels, again.decoder_tokens) == labels, "the same labels");
  });
  return 0;
}
