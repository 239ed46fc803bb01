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

constexpr uint64_t kMetaBytes = uint64_t{64} << 20;  // the shards of a large set are listed in it
constexpr int64_t kMaxVocabulary = int64_t{1} << 31;

int64_t id_of(const json& meta, const char* key, int64_t none, int64_t vocab_size, const std::string& origin) {
  if (!meta.contains(key) || meta[key].is_null()) return none;
  const json& value = meta[key];
  require(value.is_number_integer() && value >= -1 && value < vocab_size, ExitCode::data, origin, ": \"", key,
          "\" must be an id below the vocabulary's ", vocab_size, ", or -1 for none");
  return value.get<int64_t>();
}

std::string text_of(const json& meta, const char* key, const std::string& origin) {
  if (!meta.contains(key) || meta[key].is_null()) return "";
  require(meta[key].is_string(), ExitCode::data, origin, ": \"", key, "\" must be a text");
  return meta[key].get<std::string>();
}

void check_tokenizer(const fs::path& folder, const LanguageMeta& meta, const std::string& origin) {
  if (meta.tokenizer_file.empty() || meta.tokenizer_file == kByteTokenizer) return;
  require(is_plain_file_name(meta.tokenizer_file), ExitCode::data, origin, ": \"tokenizer_file\" '",
          printable_start(meta.tokenizer_file), "' is no name of a file beside it");
  const MappedFile file(folder / meta.tokenizer_file, ExitCode::data, Links::refuse);
  if (meta.tokenizer_digest.empty()) return;
  require(digest_hex(file.bytes()) == meta.tokenizer_digest, ExitCode::data, (folder / meta.tokenizer_file).string(),
          ": is not the tokenizer that the ids of this folder were made with (its digest is not the one in ",
          kLanguageMetaFile, ")");
}

}  // namespace

LanguageMeta read_language_meta(const fs::path& folder) {
  const fs::path path = folder / kLanguageMetaFile;
  const std::string origin = path.string();
  const json meta = parse_json(read_text(path, ExitCode::data, kMetaBytes), origin, ExitCode::data,
                               {.bytes = kMetaBytes, .depth = 8});
  require(meta.is_object(), ExitCode::data, origin, ": must be an object");
  require(meta.contains("vocab_size") && meta["vocab_size"].is_number_integer() && meta["vocab_size"] >= 1 &&
              meta["vocab_size"] < kMaxVocabulary,
          ExitCode::data, origin, ": \"vocab_size\" must be a whole number of at least 1");
  LanguageMeta result;
  result.vocab_size = meta["vocab_size"].get<int64_t>();
  result.pad_id = id_of(meta, "pad_id", 0, result.vocab_size, origin);
  require(result.pad_id >= 0, ExitCode::data, origin, ": \"pad_id\" is -1, but batches are padded: give an id");
  result.bos_id = id_of(meta, "bos_id", -1, result.vocab_size, origin);
  result.eos_id = id_of(meta, "eos_id", -1, result.vocab_size, origin);
  result.tokenizer_file = text_of(meta, "tokenizer_file", origin);
  result.tokenizer_digest = text_of(meta, "tokenizer_digest", origin);
  check_tokenizer(folder, result, origin);
  return result;
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
  // Unknown tokenizers are let through: the ids at least have the same range.
  if (!a.tokenizer_digest.empty() && !b.tokenizer_digest.empty()) {
    same("tokenizer_digest", a.tokenizer_digest, b.tokenizer_digest);
  }
}

}  // namespace hrm::data
