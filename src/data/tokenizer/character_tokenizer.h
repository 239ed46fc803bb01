#pragma once
// A tokenizer for generated text: every character is a token.

#include <string>
#include <string_view>
#include <vector>

namespace hrm::data::internal {

// The text of a tokenizer.json: byte-level BPE without merges, in the form of Hugging Face's tokenizers. Ids: `special`
// tokens, the bytes of `characters` in their order, then all other bytes, which that form wants, too.
std::string character_tokenizer_text(const std::vector<std::string>& special, std::string_view characters);

}  // namespace hrm::data::internal
