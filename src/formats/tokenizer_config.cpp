#include "hrm/formats/tokenizer_config.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "hrm/base/text.h"
#include "hrm/formats/json.h"

namespace hrm {
namespace {

using nlohmann::json;

constexpr size_t kMostConfigBytes = size_t{16} << 20;  // real ones have some 10 KiB, with many added tokens a MiB

std::string string_or_throw(const json& value, bool good, const std::string& origin, const char* key, ExitCode code) {
  require(good && value.is_string(), code, origin, ": \"", key, "\" is not of a known form");
  return value.get<std::string>();
}

// "<|im_end|>", or an object of the library's class AddedToken.
std::string token_of(const json& config, const char* key, const std::string& origin, ExitCode code) {
  const auto found = config.find(key);
  if (found == config.end() || found->is_null()) return "";
  if (!found->is_object()) return string_or_throw(*found, true, origin, key, code);
  const auto content = found->find("content");
  return string_or_throw(content == found->end() ? json() : *content, content != found->end(), origin, key, code);
}

std::vector<std::pair<std::string, std::string>> templates_of(const json& config, const std::string& origin,
                                                              ExitCode code) {
  constexpr const char* kKey = "chat_template";
  const auto found = config.find(kKey);
  if (found == config.end() || found->is_null()) return {};
  if (!found->is_array()) return {{"default", string_or_throw(*found, true, origin, kKey, code)}};
  std::vector<std::pair<std::string, std::string>> templates;
  for (const json& item : *found) {
    const bool good =
        item.is_object() && item.contains("name") && item["name"].is_string() && item.contains("template");
    std::string text = string_or_throw(good ? item["template"] : json(), good, origin, kKey, code);
    const std::string name = item["name"].get<std::string>();
    const bool is_new =
        std::none_of(templates.begin(), templates.end(), [&](const auto& one) { return one.first == name; });
    require(is_new, code, origin, ": \"", kKey, "\" has two templates of the name '", printable_start(name), "'");
    templates.emplace_back(name, std::move(text));
  }
  return templates;
}

}  // namespace

TokenizerConfig parse_tokenizer_config(std::string_view text, const std::string& origin, ExitCode code) {
  const json config = parse_json(text, origin, code, {.bytes = kMostConfigBytes, .depth = 16});
  require(config.is_object(), code, origin, ": must be an object");
  const auto token = [&](const char* key) { return token_of(config, key, origin, code); };
  return {token("bos_token"), token("eos_token"), token("pad_token"),  token("unk_token"),
          token("sep_token"), token("cls_token"), token("mask_token"), templates_of(config, origin, code)};
}

}  // namespace hrm
