#pragma once
// The tokenizer of tests/fixtures/tokenizer with its strings, and small ones made by hand.

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "hrm/base/philox.h"
#include "hrm/data/tokenizer.h"
#include "hrm/formats/byte_level.h"
#include "support/paths.h"

namespace hrm::data {

inline std::filesystem::path tokenizer_fixture(const std::string& file) {
  return std::filesystem::path(test::source_dir()) / "tests/fixtures/tokenizer" / file;
}

inline std::vector<nlohmann::json> fixture_strings() {
  std::ifstream file(tokenizer_fixture("strings.jsonl"));
  std::vector<nlohmann::json> rows;
  for (std::string line; std::getline(file, line);) rows.push_back(nlohmann::json::parse(line));
  return rows;
}

// The 256 bytes, ids 0 to 255 being the bytes themselves, and what merging these tokens (of bytes) in pairs gives.
inline TokenizerJson byte_tokenizer(const std::vector<std::pair<std::string, std::string>>& merges = {}) {
  TokenizerJson json;
  std::map<std::string, int32_t> ids;
  const auto add = [&](const std::string& bytes) {
    const auto id = static_cast<int32_t>(json.vocabulary.size());
    if (ids.emplace(bytes, id).second) json.vocabulary.push_back({byte_level_text(bytes), id});
  };
  for (int byte = 0; byte < 256; ++byte) add(std::string(1, static_cast<char>(byte)));
  for (const auto& [left, right] : merges) {
    add(left + right);
    json.merges.emplace_back(ids.at(left), ids.at(right));
  }
  json.pre_tokenizer.emplace_back();
  return json;
}

inline void append_utf8(char32_t c, std::string& out) {
  const auto tail = [&](int shift) { out += static_cast<char>(0x80 | ((c >> shift) & 0x3F)); };
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xC0 | (c >> 6));
    tail(0);
  } else if (c < 0x10000) {
    out += static_cast<char>(0xE0 | (c >> 12));
    tail(6);
    tail(0);
  } else {
    out += static_cast<char>(0xF0 | (c >> 18));
    tail(12);
    tail(6);
    tail(0);
  }
}

}  // namespace hrm::data
