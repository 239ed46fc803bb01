#include <map>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "hrm/formats/tokenizer_json.h"

namespace hrm {
namespace {

using Json = nlohmann::ordered_json;

Json byte_level(bool add_prefix_space, bool use_regex, bool trim_offsets = false) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", add_prefix_space},
          {"trim_offsets", trim_offsets},
          {"use_regex", use_regex}};
}

Json added_tokens(const TokenizerJson& tokenizer) {
  Json list = Json::array();
  for (const AddedToken& token : tokenizer.added_tokens) {
    list.push_back({{"id", token.id},
                    {"content", token.content},
                    {"single_word", token.single_word},
                    {"lstrip", token.lstrip},
                    {"rstrip", token.rstrip},
                    {"normalized", token.normalized},
                    {"special", token.special}});
  }
  return list;
}

// One step as it is, several as a Sequence, none as null.
Json sequence(Json steps, const char* member) {
  if (steps.empty()) return Json();
  if (steps.size() == 1) return steps[0];
  return {{"type", "Sequence"}, {member, std::move(steps)}};
}

Json pattern_json(const std::string& pattern, bool literal) {
  return Json::object({{literal ? "String" : "Regex", pattern}});
}

const char* behavior_name(SplitBehavior behavior) {
  switch (behavior) {
    case SplitBehavior::removed:
      return "Removed";
    case SplitBehavior::merged_with_previous:
      return "MergedWithPrevious";
    case SplitBehavior::merged_with_next:
      return "MergedWithNext";
    case SplitBehavior::contiguous:
      return "Contiguous";
    case SplitBehavior::isolated:
      break;
  }
  return "Isolated";
}

Json metaspace(const std::string& replacement, const char* scheme, bool cuts) {
  return {{"type", "Metaspace"}, {"replacement", replacement}, {"prepend_scheme", scheme}, {"split", cuts}};
}

Json normalizer_step(const NormalizerStep& step) {
  using Kind = NormalizerStep::Kind;
  const auto plain = [](const char* type) { return Json::object({{"type", type}}); };
  switch (step.kind) {
    case Kind::nfc:
      return plain("NFC");
    case Kind::nfd:
      return plain("NFD");
    case Kind::nfkc:
      return plain("NFKC");
    case Kind::nfkd:
      return plain("NFKD");
    case Kind::lowercase:
      return plain("Lowercase");
    case Kind::strip_accents:
      return plain("StripAccents");
    case Kind::replace:
      return {{"type", "Replace"}, {"pattern", pattern_json(step.pattern, step.literal)}, {"content", step.content}};
    case Kind::prepend:
      return {{"type", "Prepend"}, {"prepend", step.content}};
    case Kind::strip:
      break;
  }
  return {{"type", "Strip"}, {"strip_left", step.left}, {"strip_right", step.right}};
}

Json pre_tokenizer_step(const PreTokenizerStep& step) {
  using Kind = PreTokenizerStep::Kind;
  switch (step.kind) {
    case Kind::byte_level:
      return byte_level(step.add_prefix_space, step.use_regex);
    case Kind::digits:
      return {{"type", "Digits"}, {"individual_digits", step.behavior == SplitBehavior::isolated}};
    case Kind::punctuation:
      return {{"type", "Punctuation"}, {"behavior", behavior_name(step.behavior)}};
    case Kind::whitespace:
      return Json::object({{"type", "Whitespace"}});
    case Kind::space:
      return Json::object({{"type", "WhitespaceSplit"}});
    case Kind::metaspace:
      return metaspace(step.replacement,
                       step.scheme == PrependScheme::always  ? "always"
                       : step.scheme == PrependScheme::first ? "first"
                                                             : "never",
                       step.cuts);
    case Kind::split:
      break;
  }
  return {{"type", "Split"},
          {"pattern", pattern_json(step.pattern, step.literal)},
          {"behavior", behavior_name(step.behavior)},
          {"invert", step.invert}};
}

Json decoder_step(const DecoderStep& step) {
  using Kind = DecoderStep::Kind;
  switch (step.kind) {
    case Kind::byte_level:
      return byte_level(false, false);
    case Kind::replace:
      return {{"type", "Replace"}, {"pattern", pattern_json(step.pattern, true)}, {"content", step.content}};
    case Kind::byte_fallback:
      return Json::object({{"type", "ByteFallback"}});
    case Kind::fuse:
      return Json::object({{"type", "Fuse"}});
    case Kind::metaspace:
      return metaspace(step.pattern, step.prepends ? "always" : "never", true);
    case Kind::strip:
      break;
  }
  return {{"type", "Strip"}, {"content", step.content}, {"start", step.count}, {"stop", 0}};
}

template <class Step>
Json steps_json(const std::vector<Step>& steps, Json (*one)(const Step&), const char* member) {
  Json list = Json::array();
  for (const Step& step : steps) list.push_back(one(step));
  return sequence(std::move(list), member);
}

Json template_pieces(const std::vector<TemplatePiece>& pieces) {
  Json list = Json::array();
  for (const TemplatePiece& piece : pieces) {
    const Json inner = {{"id", piece.sequence ? (piece.second ? "B" : "A") : piece.token}, {"type_id", piece.type_id}};
    list.push_back(Json::object({{piece.sequence ? "Sequence" : "SpecialToken", inner}}));
  }
  return list;
}

Json post_processor(const TokenizerJson& tokenizer) {
  Json offsets = byte_level(tokenizer.first_space_counts, false, tokenizer.trims_offsets);
  if (!tokenizer.has_template) return is_byte_level(tokenizer) || tokenizer.trims_offsets ? offsets : Json();
  std::map<std::string, Json> special;  // in an order that does not depend on the template's
  for (const auto* pieces : {&tokenizer.single, &tokenizer.pair}) {
    for (const TemplatePiece& piece : *pieces) {
      if (!piece.sequence) special[piece.token] = {{"id", piece.token}, {"ids", piece.ids}, {"tokens", piece.tokens}};
    }
  }
  Json special_tokens = Json::object();
  for (const auto& [name, entry] : special) special_tokens[name] = entry;
  Json steps = Json::array();
  if (tokenizer.trims_offsets) steps.push_back(std::move(offsets));
  steps.push_back({{"type", "TemplateProcessing"},
                   {"single", template_pieces(tokenizer.single)},
                   {"pair", template_pieces(tokenizer.pair)},
                   {"special_tokens", special_tokens}});
  return sequence(std::move(steps), "processors");
}

Json model(const TokenizerJson& tokenizer) {
  // Without what ordered_json is too slow for, which looks a key up among all before it.
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", tokenizer.unk_token.empty() ? Json() : Json(tokenizer.unk_token)},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", tokenizer.fuse_unk},
          {"byte_fallback", tokenizer.byte_fallback},
          {"ignore_merges", tokenizer.ignore_merges}};
}

// A text that ends with "\n<closing>" without that end.
std::string opened(const Json& object, int indent, std::string_view closing) {
  std::string text = object.dump(indent);
  text.resize(text.size() - closing.size() - 1);
  return text;
}

std::string indented(const std::string& text, const std::string& by) {
  std::string out;
  for (const char c : text) {
    out += c;
    if (c == '\n') out += by;
  }
  return out;
}

}  // namespace

std::string tokenizer_json_text(const TokenizerJson& tokenizer) {
  std::unordered_map<int32_t, const std::string*> tokens;
  for (const VocabularyEntry& entry : tokenizer.vocabulary) tokens.emplace(entry.id, &entry.token);
  Json root;
  root["version"] = "1.0";
  root["truncation"] = nullptr;
  root["padding"] = nullptr;
  root["added_tokens"] = added_tokens(tokenizer);
  root["normalizer"] = steps_json(tokenizer.normalizers, normalizer_step, "normalizers");
  root["pre_tokenizer"] = steps_json(tokenizer.pre_tokenizer, pre_tokenizer_step, "pretokenizers");
  root["post_processor"] = post_processor(tokenizer);
  root["decoder"] = steps_json(tokenizer.decoder, decoder_step, "decoders");
  std::string text;
  try {
    const auto quoted = [](const std::string& token) { return Json(token).dump(); };
    text = opened(root, 2, "}") + ",\n  \"model\": " + indented(opened(model(tokenizer), 2, "}"), "  ");
    text += ",\n    \"vocab\": {";
    const char* separator = "\n      ";
    for (const VocabularyEntry& entry : tokenizer.vocabulary) {
      text += separator + quoted(entry.token) + ": " + std::to_string(entry.id);
      separator = ",\n      ";
    }
    text += "\n    },\n    \"merges\": [";
    separator = "\n      ";
    for (const auto& [left, right] : tokenizer.merges) {
      require(tokens.contains(left) && tokens.contains(right), ExitCode::unexpected, "a merge of the tokens ", left,
              " and ", right, ", which the vocabulary lacks, cannot be written");
      text += cat(separator, "[", quoted(*tokens[left]), ", ", quoted(*tokens[right]), "]");
      separator = ",\n      ";
    }
    text += "\n    ]\n  }\n}\n";
  } catch (const nlohmann::json::exception&) {
    fail(ExitCode::unexpected, "a tokenizer with a token that is not UTF-8 cannot be written");
  }
  return text;
}

}  // namespace hrm
