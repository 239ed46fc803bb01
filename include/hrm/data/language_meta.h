#pragma once
// meta.json of a folder of language data: what its ids mean, and of packed text the shards.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace hrm::data {

inline constexpr const char* kLanguageMetaFile = "meta.json";
// In place of the name of a tokenizer's file: ids are the bytes of the text (hrm/data/text_encoder.h).
inline constexpr const char* kByteTokenizer = "bytes";

struct LanguageMeta {
  int64_t vocab_size = 0;  // V; ids are 0..V-1
  int64_t pad_id = 0;
  int64_t bos_id = -1;  // -1 = there is none, also for eos_id
  int64_t eos_id = -1;
  std::string tokenizer_file;    // beside meta.json; "bytes"; or empty: not known
  std::string tokenizer_digest;  // XXH3-128 of that file, hex; empty where there is no file
  bool operator==(const LanguageMeta&) const = default;
};

// The members of meta.json that LanguageMeta holds, with range and type checked; others are left to whoever knows them.
// Throws Error(data) as "origin: reason".
LanguageMeta parse_language_meta(std::string_view text, const std::string& origin);
// Of a folder. A tokenizer's file must be there, and be the one of tokenizer_digest where that is given. Throws
// Error(data), one sentence.
LanguageMeta read_language_meta(const std::filesystem::path& folder);

// What meta.json says of a shard of packed text.
struct TokenShard {
  std::string file;  // <split>-NNNNN.npy
  int64_t tokens = 0;
  int64_t documents = 0;  // that begin in it
  std::string digest;     // XXH3-128 of the tokens' and the documents' bytes, hex
};
// The shards of a split, in order, at least one. Throws Error(data) as "origin: reason".
std::vector<TokenShard> parse_token_shards(std::string_view text, const std::string& origin, const std::string& split);
std::vector<TokenShard> read_token_shards(const std::filesystem::path& folder, const std::string& split);

// True for a folder whose meta.json lists shards of tokens.
bool is_token_folder(const std::filesystem::path& folder);
// Whether it lists that split.
bool has_token_split(const std::filesystem::path& folder, const std::string& split);

// Writes `<folder>/meta.json`, with `more`, members of JSON text without braces (e.g. "\"a\": 1"), at its end. Throws
// Error(environment).
void write_language_meta(const std::filesystem::path& folder, const LanguageMeta& meta, const std::string& more = "");

// That two sources can be read as one: the same ids for the same text. Throws Error(data) naming both.
void check_same_language(const LanguageMeta& a, const std::string& a_origin, const LanguageMeta& b,
                         const std::string& b_origin);

}  // namespace hrm::data
