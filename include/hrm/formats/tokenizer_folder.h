#pragma once
// The tokenizer.json of a folder of Hugging Face's transformers, also where it is not there yet: older folders have
// vocab.json and merges.txt in its place.

#include <filesystem>
#include <string>

#include "hrm/base/error.h"

namespace hrm {

// Whether the folder has a tokenizer.json, or vocab.json and merges.txt.
bool has_tokenizer(const std::filesystem::path& folder);

struct FolderTokenizer {
  std::string text;            // of the tokenizer.json
  std::filesystem::path file;  // what it was read from: tokenizer.json or vocab.json
};

// The text of tokenizer.json; otherwise one made from vocab.json and merges.txt, as transformers opens them: with the
// words of GPT-2, or with normalization form C those of Qwen. tokenizer_config.json says which and names the added
// tokens; in older folders added_tokens.json and special_tokens_map.json do. Throws Error(code) for a folder without a
// tokenizer, if possible with the line that makes tokenizer.json; for wrong files; and for a class that needs more than
// these files.
FolderTokenizer read_folder_tokenizer(const std::filesystem::path& folder, ExitCode code = ExitCode::data);

// The text of a tokenizer's file: of tokenizer.json, or read_folder_tokenizer of a folder. Another file of a tokenizer
// (tokenizer.model, vocab.json, merges.txt) is refused with what to do.
FolderTokenizer read_tokenizer(const std::filesystem::path& file_or_folder, ExitCode code = ExitCode::data);

}  // namespace hrm
