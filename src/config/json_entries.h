#pragma once
// A JSON text as a flat list of dotted keys with their lines. Private to config/: it alone sees nlohmann's parser.

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace hrm::config {

struct JsonEntry {
  std::string key;       // dotted path, e.g. "model.arch"
  int line = 0;          // where the key stands, from 1
  nlohmann::json value;  // a scalar; an empty object or array stands for one of these (objects' members follow)
};

// Parses a JSON object with // and /* */ comments. `name` is the text's name in messages. Throws Error(usage) naming
// the line for a syntax error, for a duplicate key or one longer than 256 bytes, for objects and arrays more than 16
// deep, for a text that is not an object, and for one of more than kMaxConfigBytes.
std::vector<JsonEntry> parse_json_entries(const std::string& text, const std::string& name);

}  // namespace hrm::config
