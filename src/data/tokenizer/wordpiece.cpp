#include "hrm/data/wordpiece.h"

#include <utf8proc.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "data/tokenizer/unicode.h"
#include "hrm/base/file.h"
#include "hrm/base/text.h"
#include "hrm/formats/file_kind.h"
#include "hrm/formats/json.h"

namespace hrm::data {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr size_t kLongestWord = 100;  // characters; longer words are unknown
constexpr size_t kMostVocabularyTokens = size_t{1} << 22;
constexpr size_t kFileBytes = size_t{64} << 20;
constexpr const char* kInside = "##";

utf8proc_category_t category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

bool is_unicode_space(char32_t c) {
  return (UnicodeTable::get().classes(c) & kSpace) != 0;
}

// Unassigned characters are not control characters: an emoji newer than the tables stays and makes its word unknown.
bool is_control(char32_t c) {
  if (c == '\t' || c == '\n' || c == '\r') return false;
  const utf8proc_category_t type = category(c);
  return type == UTF8PROC_CATEGORY_CC || type == UTF8PROC_CATEGORY_CF || type == UTF8PROC_CATEGORY_CO;
}

// ASCII characters that are not letter, digit, space or control, even symbols; otherwise category P.
bool is_punctuation(char32_t c) {
  if ((c >= 33 && c <= 47) || (c >= 58 && c <= 64) || (c >= 91 && c <= 96) || (c >= 123 && c <= 126)) return true;
  switch (category(c)) {
    case UTF8PROC_CATEGORY_PC:
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO:
      return true;
    default:
      return false;
  }
}

// The blocks of CJK unified ideographs, their extensions and compatibility forms. Not kana or hangul, which are written
// with spaces or endings.
bool is_ideograph(char32_t c) {
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x20000 && c <= 0x2A6DF) ||
         (c >= 0x2A700 && c <= 0x2B73F) || (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
         (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

std::u32string decomposed_without_marks(const std::u32string& text) {
  std::u32string out;
  for (const char32_t c : text) {
    utf8proc_int32_t parts[32];
    int boundary = 0;
    const utf8proc_ssize_t count =
        utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), parts, 32, UTF8PROC_DECOMPOSE, &boundary);
    for (utf8proc_ssize_t i = 0; i < count && i < 32; ++i) {
      if (category(static_cast<char32_t>(parts[i])) != UTF8PROC_CATEGORY_MN) out += static_cast<char32_t>(parts[i]);
    }
  }
  return out;
}

// Also handles the one letter whose lower case is two characters.
std::u32string in_lower_case(const std::u32string& text) {
  std::u32string out;
  for (const char32_t c : text) {
    if (c == 0x130) {
      out += U"i\u0307";
    } else {
      out += static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c)));
    }
  }
  return out;
}

std::u32string characters_of(std::string_view text) {
  std::string valid;
  append_utf8_lossy(text, /*complete=*/true, valid);
  std::u32string out;
  for (size_t at = 0; at < valid.size();) {
    const Character character = character_at(valid.data() + at);
    out += character.code;
    at += character.bytes;
  }
  return out;
}

std::vector<std::string> lines_of(std::string_view text, const std::string& origin, ExitCode code) {
  refuse_foreign_file(as_bytes(text), origin, code);
  require(is_utf8(text), code, origin, ": is not UTF-8");
  text = without_byte_order_mark(text);
  std::vector<std::string> tokens;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = text.substr(at, end - at);
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    tokens.emplace_back(line);
    require(tokens.size() <= kMostVocabularyTokens, code, origin, ": has more than ", kMostVocabularyTokens, " lines");
    at = end + 1;
  }
  return tokens;
}

bool flag(const json& object, const char* key, bool otherwise, const std::string& origin, ExitCode code) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return otherwise;
  require(found->is_boolean(), code, origin, ": '", key, "' must be true or false");
  return found->get<bool>();
}

}  // namespace

WordPiece WordPiece::from_json(std::string_view text, const std::string& origin, ExitCode code) {
  const json root = parse_json(text, origin, code, {.bytes = kFileBytes, .depth = 16});
  const auto check = [&](bool holds, const char* why) { require(holds, code, origin, ": ", why); };
  check(root.is_object() && root.contains("model") && root["model"].is_object(), "'model' is missing");
  const json& model = root["model"];
  check(model.value("type", json()) == "WordPiece", "the model is not WordPiece");
  check(!model.contains("continuing_subword_prefix") || model["continuing_subword_prefix"] == kInside,
        "pieces inside of a word must have ## in front");
  check(!model.contains("max_input_chars_per_word") || model["max_input_chars_per_word"] == kLongestWord,
        "'max_input_chars_per_word' must be 100");
  check(model.contains("vocab") && model["vocab"].is_object() && model["vocab"].size() <= kMostVocabularyTokens,
        "'model.vocab' is missing");
  std::vector<std::string> tokens(model["vocab"].size());
  std::vector<bool> given(tokens.size());
  for (const auto& item : model["vocab"].items()) {
    const json& id = item.value();
    check(id.is_number_integer() && id >= 0 && id < tokens.size() && !given[id.get<size_t>()],
          "'model.vocab' must give each id from 0 on once");
    given[id.get<size_t>()] = true;
    tokens[id.get<size_t>()] = item.key();
  }
  WordPieceOptions options;
  if (root.contains("normalizer") && !root["normalizer"].is_null()) {
    const json& normalizer = root["normalizer"];
    check(normalizer.is_object() && normalizer.value("type", json()) == "BertNormalizer",
          "the normalizer must be a BertNormalizer");
    options.clean_text = flag(normalizer, "clean_text", true, origin, code);
    options.handle_chinese_chars = flag(normalizer, "handle_chinese_chars", true, origin, code);
    options.lowercase = flag(normalizer, "lowercase", true, origin, code);
    options.strip_accents = flag(normalizer, "strip_accents", options.lowercase, origin, code);
  } else {
    options = {.clean_text = false, .handle_chinese_chars = false, .lowercase = false, .strip_accents = false};
  }
  check(model.value("unk_token", json("[UNK]")) == "[UNK]", "'unk_token' must be [UNK]");
  const auto type_of = [&](const char* key) {
    return root.contains(key) && root[key].is_object() ? root[key].value("type", json()) : json();
  };
  check(type_of("pre_tokenizer") == "BertPreTokenizer", "the pre_tokenizer must be a BertPreTokenizer");
  check(type_of("post_processor") == "TemplateProcessing" || type_of("post_processor") == "BertProcessing",
        "the post_processor must put [CLS] and [SEP] around a text (TemplateProcessing or BertProcessing)");
  return WordPiece(std::move(tokens), options, origin, code);
}

WordPiece WordPiece::from_vocabulary(std::string_view text, const std::string& origin,
                                     std::optional<std::string_view> config, const std::string& config_origin,
                                     ExitCode code) {
  WordPieceOptions options;
  if (config) {
    const json root = parse_json(*config, config_origin, code, {.bytes = kFileBytes, .depth = 16});
    require(root.is_object(), code, config_origin, ": must be an object");
    options.lowercase = flag(root, "do_lower_case", true, config_origin, code);
    // By default, accents are stripped if text is lower-cased.
    options.strip_accents = flag(root, "strip_accents", options.lowercase, config_origin, code);
    options.handle_chinese_chars = flag(root, "tokenize_chinese_chars", true, config_origin, code);
  }
  return WordPiece(lines_of(text, origin, code), options, origin, code);
}

WordPiece WordPiece::load(const fs::path& folder, ExitCode code) {
  std::error_code ignored;
  const fs::path vocabulary = folder / "vocab.txt", config = folder / "tokenizer_config.json",
                 whole = folder / "tokenizer.json";
  if (fs::exists(whole, ignored)) return from_json(read_text(whole, code, kFileBytes), whole.string(), code);
  require(fs::exists(vocabulary, ignored), code, "'", folder.string(),
          "' holds no WordPiece tokenizer: neither tokenizer.json nor vocab.txt is there");
  std::optional<std::string> options;
  if (fs::exists(config, ignored)) options = read_text(config, code, kFileBytes);
  return from_vocabulary(read_text(vocabulary, code, kFileBytes), vocabulary.string(), options, config.string(), code);
}

WordPiece::WordPiece(std::vector<std::string> tokens, const WordPieceOptions& options, const std::string& origin,
                     ExitCode code)
    : options_(options), tokens_(std::move(tokens)) {
  for (size_t i = 0; i < tokens_.size(); ++i) {
    const auto [first, is_new] = ids_.emplace(tokens_[i], static_cast<int32_t>(i));
    require(is_new, code, origin, ": the token '", printable_start(tokens_[i]), "' occurs twice, as ", first->second,
            " and as ", i);
    longest_ = std::max(longest_, tokens_[i].size());
  }
  for (const auto& [name, id] :
       {std::pair{"[UNK]", &unk_}, std::pair{"[CLS]", &cls_}, std::pair{"[SEP]", &sep_}, std::pair{"[PAD]", &pad_}}) {
    const auto found = ids_.find(name);
    require(found != ids_.end(), code, origin, ": the token ", name, " is missing");
    *id = found->second;
  }
  for (const char* name : {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}) {
    if (const auto found = ids_.find(name); found != ids_.end()) special_.emplace_back(name, found->second);
  }
}

// Greedy longest match from the beginning. A word that cannot be split is unknown as a whole.
void WordPiece::add_word(const std::u32string& word, std::vector<int32_t>& ids) const {
  if (word.empty()) return;
  if (word.size() > kLongestWord) {
    ids.push_back(unk_);
    return;
  }
  std::string bytes;
  std::vector<size_t> ends;  // end of each character, in bytes
  for (const char32_t c : word) {
    append_utf8(c, bytes);
    ends.push_back(bytes.size());
  }
  const size_t first = ids.size();
  size_t begin = 0, from = 0;  // in bytes, in characters
  std::string piece;
  while (from < ends.size()) {
    size_t to = ends.size();
    bool found = false;
    for (; to > from; --to) {
      const size_t length = ends[to - 1] - begin;
      if (length + (from > 0 ? 2 : 0) > longest_) continue;
      piece.assign(from > 0 ? kInside : "");
      piece.append(bytes, begin, length);
      const auto known = ids_.find(piece);
      if (known == ids_.end()) continue;
      ids.push_back(known->second);
      found = true;
      break;
    }
    if (!found) {
      ids.resize(first);
      ids.push_back(unk_);
      return;
    }
    begin = ends[to - 1];
    from = to;
  }
}

// Adds the pieces of a text without special tokens, until there are `most` ids.
void WordPiece::add_text(std::string_view text, int64_t most, std::vector<int32_t>& ids) const {
  std::u32string characters;
  for (const char32_t c : characters_of(text)) {
    if (options_.clean_text && (c == 0 || c == 0xFFFD || is_control(c))) continue;
    if (options_.clean_text && is_unicode_space(c)) {
      characters += U' ';
    } else if (options_.handle_chinese_chars && is_ideograph(c)) {
      characters += {U' ', c, U' '};
    } else {
      characters += c;
    }
  }
  if (options_.strip_accents) characters = decomposed_without_marks(characters);
  if (options_.lowercase) characters = in_lower_case(characters);
  std::u32string word;
  const auto full = [&] { return static_cast<int64_t>(ids.size()) >= most; };
  for (const char32_t c : characters) {
    const bool space = is_unicode_space(c), alone = !space && is_punctuation(c);
    if (!space && !alone) {
      word += c;
      continue;
    }
    add_word(word, ids);
    word.clear();
    if (alone) add_word(std::u32string(1, c), ids);
    if (full()) return;
  }
  add_word(word, ids);
}

std::vector<int32_t> WordPiece::encode(std::string_view text, int64_t max_length) const {
  require(max_length >= 2, ExitCode::usage, "a sentence of ", max_length, " tokens has no room for [CLS] and [SEP]");
  const int64_t most = max_length - 1;
  std::vector<int32_t> ids{cls_};
  for (size_t at = 0; at < text.size() && static_cast<int64_t>(ids.size()) < most;) {
    size_t end = text.size();
    const std::pair<std::string, int32_t>* next = nullptr;
    for (const auto& special : special_) {
      const size_t found = text.find(special.first, at);
      if (found >= end) continue;
      end = found;
      next = &special;
    }
    add_text(text.substr(at, end - at), most, ids);
    if (next != nullptr) ids.push_back(next->second);
    at = end + (next != nullptr ? next->first.size() : 0);
  }
  if (static_cast<int64_t>(ids.size()) > most) ids.resize(static_cast<size_t>(most));
  ids.push_back(sep_);
  return ids;
}

}  // namespace hrm::data
