#pragma once
// The words of configurations that libFuzzer puts inputs together from: sections, keys with their other names, and
// choices, all from the list of fields. The kept dictionaries hold only the punctuation and the numbers.

#include <set>
#include <string>
#include <variant>
#include <vector>

#include "hrm/config/schema.h"

namespace hrm::fuzz {

inline std::vector<std::string> choices_of(const config::Field& field) {
  const auto* rule = std::get_if<config::OneOf>(&field.rule);
  return rule == nullptr ? std::vector<std::string>() : rule->values;
}

// Of a file: the parts of dotted names are keys of objects ("model":), choices are strings ("trm").
inline std::set<std::string> file_words() {
  std::set<std::string> words;
  const auto add_parts = [&](std::string name) {
    for (size_t dot; (dot = name.find('.')) != std::string::npos; name = name.substr(dot + 1)) {
      words.insert("\"" + name.substr(0, dot) + "\":");
    }
    words.insert("\"" + name + "\":");
  };
  for (const config::Field& field : config::fields()) {
    add_parts(field.key);
    for (const config::OtherName& other : field.other_names) add_parts(other.name);
    for (const std::string& value : choices_of(field)) words.insert("\"" + value + "\"");
  }
  return words;
}

// Of a command line: sections ("model."), keys without their section, other names, choices.
inline std::set<std::string> argument_words() {
  std::set<std::string> words;
  for (const config::Field& field : config::fields()) {
    if (!field.section.empty()) words.insert(field.section + ".");
    words.insert(field.section.empty() ? field.key : field.key.substr(field.section.size() + 1));
    for (const config::OtherName& other : field.other_names) words.insert(other.name);
    for (const std::string& value : choices_of(field)) words.insert(value);
  }
  return words;
}

// A line of a dictionary: the word in quotes, its own quotes as \x22.
inline std::string dictionary_line(const std::string& word) {
  std::string line = "\"";
  for (const char c : word) line += c == '"' ? std::string("\\x22") : std::string(1, c);
  return line + "\"\n";
}

}  // namespace hrm::fuzz
