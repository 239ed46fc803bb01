#include "hrm/formats/tokenizer_config.h"

#include <nlohmann/json.hpp>

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

std::string template_of(const json& config, const std::string& origin, ExitCode code) {
  constexpr const char* kKey = "chat_template";
  const auto found = config.find(kKey);
  if (found == config.end() || found->is_null()) return "";
  if (!found->is_array()) return string_or_throw(*found, true, origin, kKey, code);
  std::string text;
  for (const json& item : *found) {
    const bool good =
        item.is_object() && item.contains("name") && item["name"].is_string() && item.contains("template");
    const std::string one = string_or_throw(good ? item["template"] : json(), good, origin, kKey, code);
    if (item["name"] == "default") text = one;
  }
  return text;
}

}  // namespace

TokenizerConfig parse_tokenizer_config(std::string_view text, const std::string& origin, ExitCode code) {
  const json config = parse_json(text, origin, code, {.bytes = kMostConfigBytes, .depth = 16});
  require(config.is_object(), code, origin, ": must be an object");
  return {token_of(config, "bos_token", origin, code), token_of(config, "eos_token", origin, code),
          token_of(config, "pad_token", origin, code), template_of(config, origin, code)};
}

}  // namespace hrm
