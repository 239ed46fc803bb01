#pragma once
// tokenizer_config.json, beside a tokenizer.json of Hugging Face's transformers: names of special tokens, and the chat
// template. Everything else in it is ignored.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hrm/base/error.h"

namespace hrm {

struct TokenizerConfig {
  std::string bos_token = "", eos_token = "", pad_token = "";  // empty: there is none
  std::string unk_token = "", sep_token = "", cls_token = "", mask_token = "";
  // Jinja texts with their names; a single one is called default.
  std::vector<std::pair<std::string, std::string>> chat_templates = {};
};

// Throws Error(code) as "origin: reason" for no JSON, more than 16 MiB, or one of these members of another type.
TokenizerConfig parse_tokenizer_config(std::string_view text, const std::string& origin,
                                       ExitCode code = ExitCode::data);

}  // namespace hrm
