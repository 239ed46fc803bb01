// tokenizer_config.json of transformers. What is taken of it is the same when it is written and read again.
#include <nlohmann/json.hpp>

#include "fuzz/fuzz.h"
#include "hrm/formats/tokenizer_config.h"

using namespace hrm;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text = fuzz::text_of(data, size);
  fuzz::parses(ExitCode::data, [&] {
    const TokenizerConfig one = parse_tokenizer_config(text, "x.json", ExitCode::data);
    nlohmann::json templates = nlohmann::json::array();
    for (const auto& [name, text] : one.chat_templates) templates.push_back({{"name", name}, {"template", text}});
    const nlohmann::json written = {{"bos_token", one.bos_token},
                                    {"eos_token", {{"content", one.eos_token}}},
                                    {"pad_token", one.pad_token},
                                    {"unk_token", one.unk_token},
                                    {"chat_template", templates}};
    const TokenizerConfig again = parse_tokenizer_config(written.dump(), "x.json", ExitCode::data);
    fuzz::check(again.bos_token == one.bos_token && again.eos_token == one.eos_token &&
                    again.pad_token == one.pad_token && again.unk_token == one.unk_token &&
                    again.chat_templates == one.chat_templates,
                "the same texts");
  });
  return 0;
}
