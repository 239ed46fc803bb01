#pragma once
// A tokenizer for generated text, with one token per character.

#include <string>
#include <string_view>
#include <vector>

namespace hrm::data::internal {

// The text of a tokenizer.json for byte-level BPE without merges. Ids are assigned in this order: the `special` tokens,
// the bytes of `characters`, then all other bytes, which the format requires.
std::string character_tokenizer_text(const std::vector<std::string>& special, std::string_view characters);

}  // namespace hrm::data::internal
