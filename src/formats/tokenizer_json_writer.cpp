#include <map>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "hrm/formats/tokenizer_json.h"

namespace hrm {
namespace {

using Json = nlohmann::ordered_json;

Json byte_level(bool add_prefix_space, bool use_regex) {
  return {
      {"type", "ByteLevel"}, {"add_prefix_space", add_prefix_space}, {"trim_offsets", false}, {"use_regex", use_regex}};
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

Json pre_tokenizer(const TokenizerJson& tokenizer) {
  Json steps = Json::array();
  for (const PreTokenizerStep& step : tokenizer.pre_tokenizer) {
    if (step.kind == PreTokenizerStep::Kind::byte_level) {
      steps.push_back(byte_level(step.add_prefix_space, step.use_regex));
    } else {
      steps.push_back(
          {{"type", "Split"}, {"pattern", {{"Regex", step.pattern}}}, {"behavior", "Isolated"}, {"invert", false}});
    }
  }
  if (steps.size() == 1) return steps[0];
  return {{"type", "Sequence"}, {"pretokenizers", steps}};
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
  if (!tokenizer.has_template) return byte_level(false, false);
  std::map<std::string, Json> special;  // in an order that does not depend on the template's
  for (const auto* pieces : {&tokenizer.single, &tokenizer.pair}) {
    for (const TemplatePiece& piece : *pieces) {
      if (!piece.sequence) special[piece.token] = {{"id", piece.token}, {"ids", piece.ids}, {"tokens", piece.tokens}};
    }
  }
  Json special_tokens = Json::object();
  for (const auto& [name, entry] : special) special_tokens[name] = entry;
  return {{"type", "TemplateProcessing"},
          {"single", template_pieces(tokenizer.single)},
          {"pair", template_pieces(tokenizer.pair)},
          {"special_tokens", special_tokens}};
}

Json model(const TokenizerJson& tokenizer) {
  // Without what ordered_json is too slow for, which looks a key up among all before it.
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", nullptr},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", false},
          {"byte_fallback", false},
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
  root["normalizer"] = tokenizer.nfc ? Json::object({{"type", "NFC"}}) : Json();
  root["pre_tokenizer"] = pre_tokenizer(tokenizer);
  root["post_processor"] = post_processor(tokenizer);
  root["decoder"] = byte_level(false, false);
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
    fail(ExitCode::unexpected, "a tokenizer with a token that is no UTF-8 cannot be written");
  }
  return text;
}

}  // namespace hrm
