#include "hrm/data/language_meta.h"

#include <nlohmann/json.hpp>

#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/base/hash.h"
#include "hrm/base/text.h"
#include "hrm/formats/json.h"

namespace hrm::data {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr uint64_t kMetaBytes = uint64_t{64} << 20;  // lists the shards of large datasets
constexpr int64_t kMaxVocabulary = int64_t{1} << 31;
constexpr int64_t kMaxCount = int64_t{1} << 48;
constexpr std::string_view kNpySuffix = ".npy";

json parse_meta(std::string_view text, const std::string& origin) {
  return parse_json(text, origin, ExitCode::data, {.bytes = kMetaBytes, .depth = 8});
}

std::string meta_text(const fs::path& folder) {
  return read_text(folder / kLanguageMetaFile, ExitCode::data, kMetaBytes);
}
json read_meta(const fs::path& folder) {
  return parse_meta(meta_text(folder), (folder / kLanguageMetaFile).string());
}

// The value if it is a whole number below `end`, otherwise -1. Comparing JSON with int64 would turn 2^64 - 1 into -1.
int64_t number_below(const json& value, int64_t end) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() >= static_cast<uint64_t>(end)) return -1;
  return value.get<int64_t>();
}

int64_t special_id(const json& meta, const char* key, int64_t none, int64_t vocab_size, const std::string& origin) {
  if (!meta.contains(key) || meta[key].is_null()) return none;
  const json& value = meta[key];
  const int64_t id = number_below(value, vocab_size);
  const bool says_none = value.is_number_integer() && !value.is_number_unsigned() && value == -1;
  require(id >= 0 || says_none, ExitCode::data, origin, ": \"", key, "\" must be an id below the vocabulary's ",
          vocab_size, ", or -1 for none");
  return id;
}

std::string text_of(const json& meta, const char* key, const std::string& origin) {
  if (!meta.contains(key) || meta[key].is_null()) return "";
  require(meta[key].is_string(), ExitCode::data, origin, ": \"", key, "\" must be a text");
  return meta[key].get<std::string>();
}

void check_tokenizer(const fs::path& folder, const LanguageMeta& meta, const std::string& origin) {
  if (meta.tokenizer_file.empty() || meta.tokenizer_file == kByteTokenizer) return;
  require(is_plain_file_name(meta.tokenizer_file), ExitCode::data, origin, ": \"tokenizer_file\" '",
          printable_start(meta.tokenizer_file), "' is not a name of a file beside it");
  const MappedFile file(folder / meta.tokenizer_file, ExitCode::data, Links::refuse);
  if (meta.tokenizer_digest.empty()) return;
  require(digest_hex(file.bytes()) == meta.tokenizer_digest, ExitCode::data, (folder / meta.tokenizer_file).string(),
          ": is not the tokenizer that the ids of this folder were made with (its digest is not the one in ",
          kLanguageMetaFile, ")");
}

}  // namespace

LanguageMeta parse_language_meta(std::string_view text, const std::string& origin) {
  const json meta = parse_meta(text, origin);
  require(meta.is_object(), ExitCode::data, origin, ": must be an object");
  LanguageMeta result;
  result.vocab_size = meta.contains("vocab_size") ? number_below(meta["vocab_size"], kMaxVocabulary) : -1;
  require(result.vocab_size >= 1, ExitCode::data, origin, ": \"vocab_size\" must be a whole number of at least 1");
  result.pad_id = special_id(meta, "pad_id", 0, result.vocab_size, origin);
  require(result.pad_id >= 0, ExitCode::data, origin, ": \"pad_id\" is -1, but batches are padded: give an id");
  result.bos_id = special_id(meta, "bos_id", -1, result.vocab_size, origin);
  result.eos_id = special_id(meta, "eos_id", -1, result.vocab_size, origin);
  result.tokenizer_file = text_of(meta, "tokenizer_file", origin);
  result.tokenizer_digest = text_of(meta, "tokenizer_digest", origin);
  return result;
}

LanguageMeta read_language_meta(const fs::path& folder) {
  const std::string origin = (folder / kLanguageMetaFile).string();
  LanguageMeta meta = parse_language_meta(meta_text(folder), origin);
  check_tokenizer(folder, meta, origin);
  return meta;
}

std::vector<TokenShard> parse_token_shards(std::string_view text, const std::string& origin, const std::string& split) {
  const json meta = parse_meta(text, origin);
  const auto check = [&](bool good) {
    require(good, ExitCode::data, origin, ": the shards of split '", split, "' are not described as \"splits\": {\"",
            split, "\": [{\"file\", \"tokens\", \"documents\", \"digest\"}]}");
  };
  check(meta.is_object() && meta.contains("splits") && meta["splits"].is_object());
  require(meta["splits"].contains(split), ExitCode::data, origin, ": has no split '", split, "'");
  const json& list = meta["splits"][split];
  check(list.is_array() && !list.empty());
  std::vector<TokenShard> shards;
  for (const json& item : list) {
    const auto count = [&](const char* key) {
      const int64_t value = item.contains(key) ? number_below(item[key], kMaxCount) : -1;
      check(value >= 0);
      return value;
    };
    const auto text_at = [&](const char* key) {
      check(item.contains(key) && item[key].is_string());
      return item[key].get<std::string>();
    };
    check(item.is_object());
    shards.push_back({text_at("file"), count("tokens"), count("documents"), text_at("digest")});
    const std::string& name = shards.back().file;
    require(is_plain_file_name(name) && name.ends_with(kNpySuffix), ExitCode::data, origin, ": '",
            printable_start(name), "' is not a name of a shard beside it");
  }
  return shards;
}

std::vector<TokenShard> read_token_shards(const fs::path& folder, const std::string& split) {
  return parse_token_shards(meta_text(folder), (folder / kLanguageMetaFile).string(), split);
}

bool is_token_folder(const fs::path& folder) {
  std::error_code ignored;
  if (!fs::exists(folder / kLanguageMetaFile, ignored)) return false;
  const json meta = read_meta(folder);
  return meta.is_object() && meta.contains("splits");
}

bool has_token_split(const fs::path& folder, const std::string& split) {
  const json meta = read_meta(folder);
  return meta.is_object() && meta.contains("splits") && meta["splits"].is_object() && meta["splits"].contains(split);
}

void write_language_meta(const fs::path& folder, const LanguageMeta& meta, const std::string& more) {
  std::string text = "{\n";
  text += cat("  \"vocab_size\": ", meta.vocab_size, ",\n  \"pad_id\": ", meta.pad_id, ",\n  \"bos_id\": ", meta.bos_id,
              ",\n  \"eos_id\": ", meta.eos_id, ",\n  \"tokenizer_file\": ", json(meta.tokenizer_file).dump(),
              ",\n  \"tokenizer_digest\": ", json(meta.tokenizer_digest).dump());
  if (!more.empty()) text += ",\n" + more;
  write_text_atomic(folder / kLanguageMetaFile, text + "\n}\n");
}

void check_same_language(const LanguageMeta& a, const std::string& a_origin, const LanguageMeta& b,
                         const std::string& b_origin) {
  const auto same = [&](const char* what, const auto& x, const auto& y) {
    require(x == y, ExitCode::data, a_origin, " and ", b_origin, " cannot be read as one: ", what, " '", x, "' and '",
            y, "'");
  };
  same("vocab_size", a.vocab_size, b.vocab_size);
  same("pad_id", a.pad_id, b.pad_id);
  same("bos_id", a.bos_id, b.bos_id);
  same("eos_id", a.eos_id, b.eos_id);
  // Unknown tokenizers are accepted: at least the range of ids is equal.
  if (!a.tokenizer_digest.empty() && !b.tokenizer_digest.empty()) {
    same("tokenizer_digest", a.tokenizer_digest, b.tokenizer_digest);
  }
}

}  // namespace hrm::data
