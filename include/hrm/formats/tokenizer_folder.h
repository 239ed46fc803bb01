#pragma once
// The tokenizer.json of a transformers folder. Older folders have vocab.json and merges.txt instead.

#include <filesystem>
#include <string>

#include "hrm/base/error.h"

namespace hrm {

// Whether the folder has a tokenizer.json, or vocab.json and merges.txt.
bool has_tokenizer(const std::filesystem::path& folder);

struct FolderTokenizer {
  std::string text;            // content of tokenizer.json
  std::filesystem::path file;  // the file it comes from: tokenizer.json or vocab.json
};

// Reads tokenizer.json, or builds it from vocab.json and merges.txt as transformers does. Built tokenizers split words
// like GPT-2, or like Qwen with normalization form C. The kind and the added tokens come from tokenizer_config.json; in
// older folders, the tokens come from added_tokens.json and special_tokens_map.json.
//
// Throws Error(code) for a folder without a tokenizer, if possible with the command that creates tokenizer.json.
// Malformed files, and tokenizer classes that need other files, are also errors.
FolderTokenizer read_folder_tokenizer(const std::filesystem::path& folder, ExitCode code = ExitCode::data);

// Reads tokenizer.json from a file, or calls read_folder_tokenizer for a folder. Throws Error(code) with advice for
// other tokenizer files (tokenizer.model, vocab.json, merges.txt).
FolderTokenizer read_tokenizer(const std::filesystem::path& file_or_folder, ExitCode code = ExitCode::data);

}  // namespace hrm
