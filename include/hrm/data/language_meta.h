#pragma once
// meta.json of a folder of language data: the meaning of its ids, and the shards of packed text.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace hrm::data {

inline constexpr const char* kLanguageMetaFile = "meta.json";
// Replaces the name of a tokenizer file if the ids are the bytes of the text (hrm/data/text_encoder.h).
inline constexpr const char* kByteTokenizer = "bytes";

struct LanguageMeta {
  int64_t vocab_size = 0;  // V; ids are 0..V-1
  int64_t pad_id = 0;
  int64_t bos_id = -1;  // -1: none, also for eos_id
  int64_t eos_id = -1;
  std::string tokenizer_file;    // next to meta.json; or "bytes"; or empty: unknown
  std::string tokenizer_digest;  // XXH3-128 of that file, in hex; empty if there is no file
  bool operator==(const LanguageMeta&) const = default;
};

// Parses the members that LanguageMeta holds and checks their types and ranges; others are ignored. Throws Error(data)
// as "origin: reason".
LanguageMeta parse_language_meta(std::string_view text, const std::string& origin);
// Reads meta.json from a folder. The tokenizer file must exist and match tokenizer_digest, if given. Throws
// Error(data), one sentence.
LanguageMeta read_language_meta(const std::filesystem::path& folder);

// The entry of a shard of packed text in meta.json.
struct TokenShard {
  std::string file;  // <split>-NNNNN.npy
  int64_t tokens = 0;
  int64_t documents = 0;  // documents that begin in the shard
  std::string digest;     // XXH3-128 of the bytes of tokens and documents, in hex
};
// The shards of a split, in order; at least one. Throws Error(data) as "origin: reason".
std::vector<TokenShard> parse_token_shards(std::string_view text, const std::string& origin, const std::string& split);
std::vector<TokenShard> read_token_shards(const std::filesystem::path& folder, const std::string& split);

// True for a folder whose meta.json lists token shards.
bool is_token_folder(const std::filesystem::path& folder);
// Whether meta.json lists that split.
bool has_token_split(const std::filesystem::path& folder, const std::string& split);

// Writes `<folder>/meta.json`. `more` is appended: members as JSON text without braces, e.g. "\"a\": 1". Throws
// Error(environment) if writing fails.
void write_language_meta(const std::filesystem::path& folder, const LanguageMeta& meta, const std::string& more = "");

// Checks that two sources use the same ids for the same text. Throws Error(data) naming both.
void check_same_language(const LanguageMeta& a, const std::string& a_origin, const LanguageMeta& b,
                         const std::string& b_origin);

}  // namespace hrm::data
