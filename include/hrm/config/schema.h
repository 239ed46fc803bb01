#pragma once
// The field lists as one table, which the loader, the printers and the checks walk. Nothing here names a single field:
// a new line in a `describe` list is all that a new field needs.

#include <cstdint>
#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "hrm/config/config.h"

namespace hrm::config {

using Value = std::variant<bool, int64_t, double, std::string>;
using Rule = std::variant<Flag, IntRange, RealRange, OneOf, AnyText, PathText>;

struct Field {
  std::string key;      // dotted, e.g. "model.hidden_size"
  std::string section;  // "model"; empty for a top-level field
  std::string unit;     // empty where there is none
  std::string help;
  Rule rule;
  std::vector<std::string> tasks;  // that read it; empty: all of them
  Resume resume = Resume::fixed;
  std::vector<OtherName> other_names;
  std::vector<ReadWhen> read_when;  // all must hold
  std::function<Value(const Config&)> get;
  std::function<void(Config&, const Value&)> set;  // the value must hold the field's own type
};

struct Section {
  std::string name;
  std::string help;
};

// All fields, in the order of config.h.
const std::vector<Field>& fields();
const std::vector<Section>& sections();

// Whether `task` reads the field.
bool is_read_by(const Field& field, const std::string& task);
// Whether the other setting has one of the values that the condition asks for (`unless`: none of them).
bool holds(const ReadWhen& condition, const Config& config);

// The field of this dotted key, nullptr when there is none.
const Field* find_field(const std::string& key);
// Every dotted key, in order.
const std::vector<std::string>& keys();

// The known key that a mistyped one was probably meant to be, empty when none is near. The last part counts more than
// the section, so that `lr` and the official `arch.H_cycles` find `optim.lr` and `model.H_cycles`.
std::string nearest_key(const std::string& key);
// "; did you mean 'X'?", or empty for an empty guess.
std::string did_you_mean(const std::string& guess);

// A value as JSON: true, 512, 0.0001, "hrm".
std::string to_text(const Value& value);
// A JSON text for the terminal: as it is, but without characters that would steer one (JSON escapes most of them).
std::string safe_json(const std::string& json);
// What a field accepts, in words: "a whole number, 2..65536", "one of hrm, trm, transformer".
std::string describe_rule(const Rule& rule);
// Empty when the value obeys the rule, otherwise what is wrong: "is out of range: 2..65536". The value must hold the
// rule's own type.
std::string broken_rule(const Rule& rule, const Value& value);

// The dotted keys in which two configurations differ, in order.
std::vector<std::string> differing_keys(const Config& a, const Config& b);

}  // namespace hrm::config
