#pragma once
// A value of a tokenizer.json with its place, for messages: "model.vocab".

#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>

#include "formats/tokenizer_limits.h"
#include "hrm/base/error.h"
#include "hrm/base/text.h"
#include "hrm/formats/tokenizer_json.h"

namespace hrm::internal {

struct JsonNode {
  const nlohmann::json& value;
  std::string place;
  const std::string& origin;
  ExitCode code;

  template <class... Args>
  [[noreturn]] void refuse(const Args&... why) const {
    fail(code, origin, ": ", place.empty() ? "" : place + ": ", why...);
  }
  template <class... Args>
  void check(bool holds, const Args&... why) const {
    if (!holds) refuse(why...);
  }

  const JsonNode& object(std::initializer_list<const char*> keys) const {
    check(value.is_object(), "is not an object");
    for (const auto& item : value.items()) {
      check(std::find(keys.begin(), keys.end(), item.key()) != keys.end(), "the key '", printable_start(item.key()),
            "' is not known to this program");
    }
    return *this;
  }
  bool has(const char* key) const { return value.contains(key) && !value[key].is_null(); }
  JsonNode at(const char* key) const {
    check(value.contains(key), "'", key, "' is missing");
    return {value[key], place.empty() ? key : place + "." + key, origin, code};
  }
  JsonNode at(size_t index) const { return {value[index], cat(place, "[", index, "]"), origin, code}; }
  size_t array(size_t most) const {
    check(value.is_array(), "is not a list");
    check(value.size() <= most, "holds ", value.size(), " entries; at most ", most, " are read");
    return value.size();
  }
  const std::string& text(size_t most) const {
    check(value.is_string(), "is not a text");
    const std::string& text = value.get_ref<const std::string&>();
    check(text.size() <= most, "is a text of ", text.size(), " bytes; at most ", most, " are read");
    return text;
  }
  int32_t id() const {
    check(value.is_number_unsigned() && value.get<uint64_t>() < static_cast<uint64_t>(kTokenizerMostId),
          "is not a whole number from 0 to ", kTokenizerMostId - 1);
    return value.get<int32_t>();
  }
  bool flag() const {
    check(value.is_boolean(), "is neither true nor false");
    return value.get<bool>();
  }
  bool flag_or(const char* key, bool otherwise) const { return has(key) ? at(key).flag() : otherwise; }
  std::string type() const {
    check(value.is_object(), "is not an object");
    return at("type").text(256);
  }
};

// The three lists of steps (src/formats/tokenizer_steps.cpp). A Sequence is taken apart. `node` may be null for the
// first two.
std::vector<NormalizerStep> read_normalizers(const JsonNode& node);
std::vector<PreTokenizerStep> read_pre_tokenizers(const JsonNode& node);
std::vector<DecoderStep> read_decoders(const JsonNode& node);

}  // namespace hrm::internal
