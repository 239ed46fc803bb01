#include "hrm/formats/tokenizer_folder.h"

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "formats/tokenizer_limits.h"
#include "hrm/base/file.h"
#include "hrm/base/text.h"
#include "hrm/formats/file_kind.h"
#include "hrm/formats/hf_config.h"
#include "hrm/formats/json.h"
#include "hrm/formats/tokenizer_json.h"

namespace hrm {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kQwenWords =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
// The names that special_tokens_map.json and tokenizer_config.json give to tokens, in the order of transformers.
constexpr std::array kTokenNames{"bos_token", "eos_token", "unk_token", "sep_token",
                                 "pad_token", "cls_token", "mask_token"};
constexpr const char* kEndOfText = "<|endoftext|>";  // what both classes take where nothing else is named

bool is_there(const fs::path& file) {
  std::error_code ignored;
  return fs::is_regular_file(file, ignored);
}

std::string conversion(const fs::path& folder) {
  const std::string name = printable(folder.string());
  return cat(
      "make tokenizer.json with: python3 -c \"from transformers import AutoTokenizer; "
      "AutoTokenizer.from_pretrained('",
      name, "').save_pretrained('", name, "')\"");
}

// Members of files beside the vocabulary; what they lack is null.
class Beside {
 public:
  Beside(const fs::path& folder, ExitCode code) : folder_(folder), code_(code) {}

  json read(const char* name) const {
    const fs::path file = folder_ / name;
    if (!is_there(file)) return json::object();
    json value = parse_json(read_text(file, code_, kTokenizerMostBytes), file.string(), code_,
                            {.bytes = kTokenizerMostBytes, .depth = 16});
    require(value.is_object(), code_, file.string(), ": must be an object");
    return value;
  }

 private:
  fs::path folder_;
  ExitCode code_;
};

// A token's name as a text, or as an object of the library's class AddedToken; nothing for null.
std::optional<std::string> content_of(const json& token) {
  if (token.is_string()) return token.get<std::string>();
  if (token.is_object() && token.contains("content") && token["content"].is_string()) return token["content"];
  return std::nullopt;
}

class FolderReader {
 public:
  FolderReader(const fs::path& folder, ExitCode code)
      : folder_(folder),
        code_(code),
        beside_(folder, code),
        config_(beside_.read("tokenizer_config.json")),
        named_(beside_.read("special_tokens_map.json")),
        vocab_(beside_.read("vocab.json")) {}

  std::string text() {
    const bool qwen = is_qwen();
    const bool prefix_space = flag("add_prefix_space");
    const json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", prefix_space}, {"trim_offsets", true}};
    json words = bytes;
    words["use_regex"] = !qwen;
    if (qwen) {
      const json split = {
          {"type", "Split"}, {"pattern", {{"Regex", kQwenWords}}}, {"behavior", "Isolated"}, {"invert", false}};
      words = {{"type", "Sequence"}, {"pretokenizers", {split, words}}};
    }
    json whole = {{"version", "1.0"},
                  {"added_tokens", added_tokens()},
                  {"normalizer", qwen ? json{{"type", "NFC"}} : json()},
                  {"pre_tokenizer", words},
                  {"post_processor", post_processor()},
                  {"decoder", bytes},
                  {"model", {{"type", "BPE"}, {"vocab", vocab_}, {"merges", merges()}}}};
    const std::string text = whole.dump(-1, ' ', false, json::error_handler_t::replace);
    return tokenizer_json_text(parse_tokenizer_json(text, (folder_ / "vocab.json").string(), code_));
  }

 private:
  bool flag(const char* key) const {
    if (!config_.contains(key) || config_[key].is_null()) return false;
    require(config_[key].is_boolean(), code_, (folder_ / "tokenizer_config.json").string(), ": '", key,
            "' must be true or false");
    return config_[key].get<bool>();
  }

  // The class decides how words are cut; where none is named, the model's type.
  bool is_qwen() const {
    std::string name = content_of(config_.value("tokenizer_class", json())).value_or("");
    if (name.ends_with("Fast")) name.resize(name.size() - 4);
    if (name.empty()) {
      const json model = beside_.read("config.json");
      const json type = model.value("model_type", json());
      return type.is_string() && type.get<std::string>().starts_with("qwen");
    }
    require(name == "GPT2Tokenizer" || name == "Qwen2Tokenizer", code_, (folder_ / "tokenizer_config.json").string(),
            ": the tokenizer_class '", printable_start(name),
            "' needs more than vocab.json and merges.txt, which are read for GPT2Tokenizer and Qwen2Tokenizer; ",
            conversion(folder_));
    return name == "Qwen2Tokenizer";
  }

  json merges() const {
    const fs::path file = folder_ / "merges.txt";
    const std::string all = read_text(file, code_, kTokenizerMostBytes);
    refuse_foreign_file(as_bytes(all), file.string(), code_);
    require(is_utf8(all), code_, file.string(), ": is not UTF-8");
    const std::string_view text = without_byte_order_mark(all);
    json list = json::array();
    size_t number = 0;
    for (size_t at = 0; at < text.size();) {
      const size_t end = std::min(text.find('\n', at), text.size());
      std::string_view line = text.substr(at, end - at);
      at = end + 1;
      ++number;
      if (line.ends_with('\r')) line.remove_suffix(1);
      if (line.empty() || line.starts_with("#version")) continue;
      const size_t space = line.find(' ');
      require(space != line.npos && line.find(' ', space + 1) == line.npos, code_, file.string(), ": line ", number,
              ": '", printable_start(line), "' is no two tokens with a space between");
      require(list.size() < kTokenizerMostMerges, code_, file.string(), ": has more than ", kTokenizerMostMerges,
              " merges");
      list.push_back(json::array({line.substr(0, space), line.substr(space + 1)}));
    }
    return list;
  }

  std::vector<std::string> named_tokens() const {
    std::vector<std::string> names;
    const auto add = [&](const json& token) {
      const auto content = content_of(token);
      if (content && !content->empty()) names.push_back(*content);
    };
    for (const char* name : kTokenNames) {
      add(config_.contains(name) ? config_[name] : named_.value(name, json()));
    }
    for (const json* file : {&config_, &named_}) {
      for (const char* list : {"additional_special_tokens", "extra_special_tokens"}) {
        const json tokens = file->value(list, json());
        for (const json& token : tokens) add(token);
      }
    }
    if (names.empty()) names.push_back(kEndOfText);
    return names;
  }

  json added_tokens() const {
    const std::vector<std::string> names = named_tokens();
    std::map<int64_t, json> by_id;
    const auto token_of = [](int64_t id, const std::string& content, bool special) {
      return json{{"id", id},        {"content", content},     {"single_word", false}, {"lstrip", false},
                  {"rstrip", false}, {"normalized", !special}, {"special", special}};
    };
    const json decoder = config_.value("added_tokens_decoder", json());
    const std::string origin =
        (folder_ / (decoder.is_object() ? "tokenizer_config.json" : "added_tokens.json")).string();
    if (decoder.is_object()) {
      for (const auto& item : decoder.items()) {
        const auto id = whole_number(item.key());
        const auto content = content_of(item.value());
        require(id && *id < static_cast<uint64_t>(kTokenizerMostId) && content && item.value().is_object(), code_,
                origin, ": 'added_tokens_decoder' is wrong at '", printable_start(item.key()), "'");
        json& token = by_id[static_cast<int64_t>(*id)] = token_of(static_cast<int64_t>(*id), *content, false);
        for (const char* key : {"single_word", "lstrip", "rstrip", "normalized", "special"}) {
          if (item.value().contains(key)) token[key] = item.value()[key];
        }
      }
    } else {
      const json added = beside_.read("added_tokens.json");
      for (const auto& item : added.items()) {
        require(item.value().is_number_unsigned(), code_, origin, ": the id of '", printable_start(item.key()),
                "' is not a whole number");
        const bool special = std::find(names.begin(), names.end(), item.key()) != names.end();
        by_id[item.value().get<int64_t>()] = token_of(item.value().get<int64_t>(), item.key(), special);
      }
    }
    json list = json::array();
    int64_t next = static_cast<int64_t>(vocab_.size());
    std::vector<std::string> known;
    for (const auto& [id, token] : by_id) {
      list.push_back(token);
      known.push_back(token["content"]);
      next = std::max(next, id + 1);
    }
    // A token that is named and has no id gets the next one.
    for (const std::string& name : names) {
      if (std::find(known.begin(), known.end(), name) != known.end()) continue;
      known.push_back(name);
      const bool in_vocabulary = vocab_.contains(name) && vocab_[name].is_number_integer();
      list.push_back(token_of(in_vocabulary ? vocab_[name].get<int64_t>() : next++, name, /*special=*/true));
    }
    return list;
  }

  // Where the configuration asks for BOS or EOS around a text.
  json post_processor() const {
    json single = json::array(), special = json::object();
    const auto put = [&](const char* wanted, const char* name) {
      if (!flag(wanted)) return;
      const auto token = content_of(config_.contains(name) ? config_[name] : named_.value(name, json()));
      const std::string content = token.value_or(kEndOfText);
      int64_t id = -1;
      for (const json& one : added_tokens()) {
        if (one["content"] == content) id = one["id"];
      }
      special[content] = {{"id", content}, {"ids", json::array({id})}, {"tokens", json::array({content})}};
      single.push_back(json{{"SpecialToken", {{"id", content}, {"type_id", 0}}}});
    };
    const auto text = [](const char* name, int type) { return json{{"Sequence", {{"id", name}, {"type_id", type}}}}; };
    put("add_bos_token", "bos_token");
    single.push_back(text("A", 0));
    put("add_eos_token", "eos_token");
    if (single.size() == 1) return json();
    return {{"type", "TemplateProcessing"},
            {"single", single},
            {"pair", json::array({text("A", 0), text("B", 1)})},
            {"special_tokens", special}};
  }

  fs::path folder_;
  ExitCode code_;
  Beside beside_;
  json config_, named_, vocab_;
};

[[noreturn]] void refuse_sentencepiece(const fs::path& file, const fs::path& folder, ExitCode code) {
  fail(code, "'", printable(file.string()), "' is of SentencePiece, which this program does not read; ",
       conversion(folder), " (needs pip install transformers sentencepiece protobuf)");
}

}  // namespace

bool has_tokenizer(const fs::path& folder) {
  return is_there(folder / "tokenizer.json") || (is_there(folder / "vocab.json") && is_there(folder / "merges.txt"));
}

FolderTokenizer read_folder_tokenizer(const fs::path& folder, ExitCode code) {
  const fs::path whole = folder / "tokenizer.json", vocab = folder / "vocab.json", merges = folder / "merges.txt";
  if (is_there(whole)) return {read_text(whole, code, kTokenizerMostBytes), whole};
  if (is_there(vocab) && is_there(merges)) return {FolderReader(folder, code).text(), vocab};
  for (const char* name : {"tokenizer.model", "spm.model", "sentencepiece.bpe.model"}) {
    if (is_there(folder / name)) refuse_sentencepiece(folder / name, folder, code);
  }
  const std::string place = printable(folder.string());
  std::error_code ignored;
  require(fs::is_directory(folder, ignored), code, "'", printable(whole.string()), "' does not exist: '", place,
          "' is not a folder", hub_name_hint(folder.string()));
  require(!is_there(vocab), code, "'", place, "' holds vocab.json, but no merges.txt; both are needed");
  require(!is_there(merges), code, "'", place, "' holds merges.txt, but no vocab.json; both are needed");
  fail(code, "'", place, "' holds no tokenizer: neither tokenizer.json nor vocab.json and merges.txt are there");
}

FolderTokenizer read_tokenizer(const fs::path& path, ExitCode code) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) return read_folder_tokenizer(path, code);
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  if (path.extension() == ".model" && is_there(path)) refuse_sentencepiece(path, folder, code);
  const bool part = path.filename() == "vocab.json" || path.filename() == "merges.txt";
  require(!part, code, "'", printable(path.string()), "' is one half of a tokenizer; give its folder, '",
          printable(folder.string()), "'");
  if (!fs::exists(path, ignored)) {
    const std::string hint = hub_name_hint(path.string());
    require(hint.empty(), code, "the file '", printable(path.string()), "' does not exist", hint);
  }
  return {read_text(path, code, kTokenizerMostBytes), path};
}

}  // namespace hrm
