#pragma once
// tokenizer_config.json, next to the tokenizer.json of Hugging Face's transformers: the names of special tokens, and
// the chat template. All other members are ignored.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hrm/base/error.h"

namespace hrm {

struct TokenizerConfig {
  std::string bos_token = "", eos_token = "", pad_token = "";  // empty: none
  std::string unk_token = "", sep_token = "", cls_token = "", mask_token = "";
  // Jinja templates with their names; a single one has the name "default".
  std::vector<std::pair<std::string, std::string>> chat_templates = {};
};

// Throws Error(code) as "origin: reason" for invalid JSON, more than 16 MiB, or such a member with the wrong type.
TokenizerConfig parse_tokenizer_config(std::string_view text, const std::string& origin,
                                       ExitCode code = ExitCode::data);

}  // namespace hrm
