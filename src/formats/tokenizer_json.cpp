#include "hrm/formats/tokenizer_json.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "formats/tokenizer_json_node.h"
#include "formats/tokenizer_limits.h"
#include "hrm/base/log.h"
#include "hrm/base/text.h"
#include "hrm/formats/byte_level.h"
#include "hrm/formats/json.h"

namespace hrm {
namespace {

using internal::JsonNode;
using nlohmann::json;

// Programs open a tokenizer several times.
void warn_once(const std::string& origin, const std::string& what) {
  static std::mutex mutex;
  static std::set<std::string> warned;
  {
    const std::lock_guard lock(mutex);
    if (warned.size() >= 1024 || !warned.insert(origin).second) return;
  }
  log::warn(origin, ": ", what);
}

class Parser {
 public:
  explicit Parser(const JsonNode& root) : root_(root) {}

  TokenizerJson parse() {
    root_.object({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor",
                  "decoder", "model"});
    const JsonNode version = root_.at("version");
    version.check(version.text(64) == "1.0", "is '", printable_start(version.text(64)), "'; this program reads '1.0'");
    note_leftovers();
    read_model(root_.at("model"));
    if (root_.has("added_tokens")) read_added_tokens(root_.at("added_tokens"));
    check_ids();
    if (root_.value.contains("normalizer")) result_.normalizers = internal::read_normalizers(root_.at("normalizer"));
    if (root_.value.contains("pre_tokenizer")) {
      result_.pre_tokenizer = internal::read_pre_tokenizers(root_.at("pre_tokenizer"));
    }
    if (root_.has("post_processor")) read_post_processor(root_.at("post_processor"), 0);
    result_.decoder = internal::read_decoders(root_.at("decoder"));
    check_unknown();
    return std::move(result_);
  }

 private:
  // A call of the library with truncation or padding leaves its options in the file; the next call sets them anew.
  void note_leftovers() const {
    std::string found;
    for (const char* key : {"truncation", "padding"}) {
      if (!root_.has(key)) continue;
      root_.at(key).check(root_.value[key].is_object(), "is neither null nor an object");
      found += cat(found.empty() ? "" : " and ", "'", key, "'");
    }
    if (!found.empty())
      warn_once(root_.origin, found + " of a former call are skipped: texts are neither cut nor padded by it");
  }

  void read_model(const JsonNode& model) {
    model.object({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                  "byte_fallback", "ignore_merges", "vocab", "merges"});
    if (model.has("type")) {  // files of the library's first releases have none
      const std::string type = model.at("type").text(256);
      model.check(type == "BPE", "is of the type '", printable_start(type), "'; this program reads BPE");
    }
    if (model.has("dropout")) {
      const JsonNode dropout = model.at("dropout");
      dropout.check(dropout.value.is_number() && dropout.value.get<double>() == 0,
                    "is set; merges are never left out here, set it to null");
    }
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      if (model.has(key)) model.at(key).check(model.at(key).text(256).empty(), "is set; this program knows none");
    }
    if (model.has("unk_token")) result_.unk_token = model.at("unk_token").text(kTokenizerLongestToken);
    result_.fuse_unk = model.flag_or("fuse_unk", false);
    result_.byte_fallback = model.flag_or("byte_fallback", false);
    result_.ignore_merges = model.flag_or("ignore_merges", false);
    read_vocabulary(model.at("vocab"));
    read_merges(model.at("merges"));
  }

  void read_vocabulary(const JsonNode& vocab) {
    vocab.check(vocab.value.is_object(), "is not an object");
    vocab.check(vocab.value.size() <= kTokenizerMostTokens, "holds ", vocab.value.size(), " tokens; at most ",
                kTokenizerMostTokens, " are read");
    std::vector<VocabularyEntry>& entries = result_.vocabulary;
    entries.reserve(vocab.value.size());
    for (const auto& item : vocab.value.items()) {
      const std::string& token = item.key();
      vocab.check(!token.empty() && token.size() <= kTokenizerLongestToken, "the token '", printable_start(token),
                  "' has ", token.size(), " bytes; tokens have 1 to ", kTokenizerLongestToken);
      const json& id = item.value();
      vocab.check(id.is_number_unsigned() && id.get<uint64_t>() < static_cast<uint64_t>(kTokenizerMostId),
                  "the id of '", printable_start(token), "' is not a whole number from 0 to ", kTokenizerMostId - 1);
      entries.push_back({token, id.get<int32_t>()});
    }
    std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
    for (size_t i = 1; i < entries.size(); ++i) {
      vocab.check(entries[i].id != entries[i - 1].id, "'", printable_start(entries[i - 1].token), "' and '",
                  printable_start(entries[i].token), "' have the same id ", entries[i].id);
    }
    for (const VocabularyEntry& entry : entries) ids_.emplace(entry.token, entry.id);
  }

  void read_merges(const JsonNode& merges) {
    const size_t count = merges.array(kTokenizerMostMerges);
    result_.merges.reserve(count);
    std::unordered_set<uint64_t> seen;
    seen.reserve(count);
    for (size_t i = 0; i < count; ++i) {
      const json& merge = merges.value[i];
      std::array<std::string_view, 2> halves;
      if (merge.is_string()) {
        const std::string_view text = merge.get_ref<const std::string&>();
        const size_t space = text.find(' ');
        if (space == text.npos || text.find(' ', space + 1) != text.npos) {
          merges.at(i).refuse("'", printable_start(text), "' is no two tokens with a space between");
        }
        halves = {text.substr(0, space), text.substr(space + 1)};
      } else {
        const bool pair = merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string();
        if (!pair) merges.at(i).refuse("is neither 'left right' nor a list of two texts");
        halves = {merge[0].get_ref<const std::string&>(), merge[1].get_ref<const std::string&>()};
      }
      std::array<int32_t, 2> ids{};
      for (int half = 0; half < 2; ++half) {
        const auto found = ids_.find(halves[half]);
        if (found == ids_.end()) {
          merges.at(i).refuse("the token '", printable_start(halves[half]), "' is not in the vocabulary");
        }
        ids[half] = found->second;
      }
      joined_.assign(halves[0]).append(halves[1]);
      if (!ids_.contains(joined_)) {
        merges.at(i).refuse("makes '", printable_start(joined_), "', which is not in the vocabulary");
      }
      if (!seen.insert(static_cast<uint64_t>(ids[0]) << 32 | static_cast<uint32_t>(ids[1])).second) {
        merges.at(i).refuse("'", printable_start(halves[0]), "' and '", printable_start(halves[1]),
                            "' are merged twice");
      }
      result_.merges.emplace_back(ids[0], ids[1]);
    }
  }

  void read_added_tokens(const JsonNode& list) {
    const size_t count = list.array(kTokenizerMostAddedTokens);
    std::unordered_set<std::string_view> contents;
    result_.added_tokens.reserve(count);
    for (size_t i = 0; i < count; ++i) {
      const JsonNode node = list.at(i);
      node.object({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
      AddedToken token;
      token.content = node.at("content").text(kTokenizerLongestToken);
      node.check(!token.content.empty(), "its content is empty");
      token.id = node.at("id").id();
      token.single_word = node.at("single_word").flag();
      token.lstrip = node.at("lstrip").flag();
      token.rstrip = node.at("rstrip").flag();
      token.normalized = node.at("normalized").flag();
      token.special = node.at("special").flag();
      result_.added_tokens.push_back(std::move(token));
      const AddedToken& added = result_.added_tokens.back();  // where it stays: there is room for all
      node.check(contents.insert(added.content).second, "'", printable_start(added.content), "' occurs twice");
      const auto known = ids_.find(added.content);
      node.check(known == ids_.end() || known->second == added.id, "'", printable_start(added.content), "' has the id ",
                 added.id, ", but in the vocabulary ", known == ids_.end() ? 0 : known->second);
    }
  }

  // No id may belong to two tokens, and none may be one that the library would change. The library gives an added token
  // outside the vocabulary the size of the vocabulary as id, or one more than the largest id of earlier added tokens,
  // whatever the file says. Fills all_ids_.
  void check_ids() {
    for (const VocabularyEntry& entry : result_.vocabulary) all_ids_.emplace(entry.id, entry.token);
    const auto size = static_cast<int32_t>(result_.vocabulary.size());
    int32_t next = size;
    for (size_t i = 0; i < result_.added_tokens.size(); ++i) {
      const AddedToken& token = result_.added_tokens[i];
      const auto [at, fresh] = all_ids_.emplace(token.id, token.content);
      root_.check(fresh || at->second == token.content, "added_tokens: '", printable_start(token.content),
                  "' has the id ", token.id, " of '", printable_start(at->second), "'");
      root_.check(ids_.contains(token.content) || token.id == next, "added_tokens[", i, "]: '",
                  printable_start(token.content), "' has the id ", token.id, ", but the next free id is ", next,
                  ", which the tokenizers library would give it; number the added tokens without a gap, or put the "
                  "missing tokens into the vocabulary");
      next = std::max(next, token.id + 1);
    }
  }

  // What never comes into use is as if it were not there: every byte has a token of its own.
  void check_unknown() {
    bool complete = is_byte_level(result_);
    for (int byte = 0; byte < 256 && complete; ++byte) {
      complete = ids_.contains(byte_level_text(std::string(1, static_cast<char>(byte))));
    }
    if (complete) {
      result_.unk_token.clear();
      result_.fuse_unk = result_.byte_fallback = false;
    }
    const JsonNode model = root_.at("model");
    if (!result_.unk_token.empty() && !ids_.contains(result_.unk_token)) {
      // The way out is complete where each byte has its <0xXX>.
      bool covered = result_.byte_fallback;
      for (int byte = 0; byte < 256 && covered; ++byte)
        covered = ids_.contains(byte_fallback_token(static_cast<unsigned char>(byte)));
      model.check(covered, "the 'unk_token' '", printable_start(result_.unk_token),
                  "' is not in the vocabulary, but symbols can be unknown");
      result_.unk_token.clear();
    }
    if (result_.unk_token.empty()) result_.fuse_unk = false;
    if (is_byte_level(result_)) {
      const auto joins = [](const DecoderStep& step) { return step.kind == DecoderStep::Kind::byte_level; };
      root_.check(std::any_of(result_.decoder.begin(), result_.decoder.end(), joins),
                  "the pre_tokenizer has a ByteLevel, but the decoder has none");
    }
  }

  void read_post_processor(const JsonNode& node, int depth) {
    const std::string type = node.type();
    if (type == "ByteLevel") {  // only about offsets of tokens in the text
      node.object({"type", "add_prefix_space", "trim_offsets", "use_regex"});
      if (node.flag_or("trim_offsets", true)) {
        result_.trims_offsets = true;
        result_.first_space_counts = node.flag_or("add_prefix_space", true);
      }
    } else if (type == "Sequence" && depth < kTokenizerDepth) {
      node.object({"type", "processors"});
      const JsonNode list = node.at("processors");
      for (size_t i = 0, count = list.array(kTokenizerMostSteps); i < count; ++i) {
        read_post_processor(list.at(i), depth + 1);
      }
    } else if (type == "TemplateProcessing") {
      node.object({"type", "single", "pair", "special_tokens"});
      node.check(!result_.has_template, "is a second template");
      result_.has_template = true;
      const JsonNode special = node.at("special_tokens");
      special.check(special.value.is_object(), "is not an object");
      read_template(node.at("single"), special, result_.single);
      read_template(node.at("pair"), special, result_.pair);
      const auto texts = [](const std::vector<TemplatePiece>& pieces, bool second) {
        return std::count_if(pieces.begin(), pieces.end(),
                             [&](const TemplatePiece& piece) { return piece.sequence && piece.second == second; });
      };
      node.check(texts(result_.single, false) == 1 && texts(result_.single, true) == 0,
                 "'single' holds the text 'A' not exactly once, or a text 'B'");
      node.check(result_.pair.empty() || (texts(result_.pair, false) == 1 && texts(result_.pair, true) == 1),
                 "'pair' does not hold the texts 'A' and 'B' exactly once");
    } else {
      node.refuse("the post-processor '", printable_start(type),
                  "' is not known to this program; it knows ByteLevel and TemplateProcessing, also in a Sequence");
    }
  }

  void read_template(const JsonNode& list, const JsonNode& special, std::vector<TemplatePiece>& pieces) {
    for (size_t i = 0, count = list.array(kTokenizerMostPieces); i < count; ++i) {
      const JsonNode node = list.at(i).object({"SpecialToken", "Sequence"});
      node.check(node.value.size() == 1, "is neither a SpecialToken nor a Sequence");
      TemplatePiece piece;
      piece.sequence = node.value.contains("Sequence");
      const JsonNode inner = node.at(piece.sequence ? "Sequence" : "SpecialToken").object({"id", "type_id"});
      const std::string& name = inner.at("id").text(kTokenizerLongestToken);
      piece.type_id = inner.at("type_id").id();
      if (piece.sequence) {
        inner.check(name == "A" || name == "B", "'", printable_start(name), "' is neither 'A' nor 'B'");
        piece.second = name == "B";
      } else {
        piece.token = name;
        inner.check(special.value.contains(name), "'", printable_start(name), "' is none of 'special_tokens'");
        read_special({special.value[name], special.place + "." + printable_start(name), special.origin, special.code},
                     piece);
      }
      pieces.push_back(std::move(piece));
    }
  }

  void read_special(const JsonNode& node, TemplatePiece& piece) {
    node.object({"id", "ids", "tokens"});
    node.check(node.at("id").text(kTokenizerLongestToken) == piece.token, "has another 'id' than its key");
    const JsonNode ids = node.at("ids"), tokens = node.at("tokens");
    const size_t count = ids.array(kTokenizerMostPieces);
    node.check(count >= 1 && tokens.array(kTokenizerMostPieces) == count,
               "needs as many 'ids' as 'tokens', at least one");
    for (size_t i = 0; i < count; ++i) {
      piece.ids.push_back(ids.at(i).id());
      piece.tokens.push_back(tokens.at(i).text(kTokenizerLongestToken));
      const auto known = all_ids_.find(piece.ids.back());
      node.check(known != all_ids_.end() && known->second == piece.tokens.back(), "the token '",
                 printable_start(piece.tokens.back()), "' does not have the id ", piece.ids.back());
    }
  }

  JsonNode root_;
  TokenizerJson result_;
  std::unordered_map<std::string_view, int32_t> ids_;      // of the vocabulary; views of result_
  std::unordered_map<int32_t, std::string_view> all_ids_;  // with added tokens
  std::string joined_;
};

}  // namespace

bool is_byte_level(const TokenizerJson& tokenizer) {
  return std::any_of(tokenizer.pre_tokenizer.begin(), tokenizer.pre_tokenizer.end(),
                     [](const PreTokenizerStep& step) { return step.kind == PreTokenizerStep::Kind::byte_level; });
}

TokenizerJson parse_tokenizer_json(std::string_view text, const std::string& origin, ExitCode code) {
  const json root = parse_json(text, origin, code, {.bytes = kTokenizerMostBytes, .depth = 16});
  return Parser({root, "", origin, code}).parse();
}

}  // namespace hrm
