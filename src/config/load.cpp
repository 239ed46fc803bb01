#include "hrm/config/load.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "consistency.h"
#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/base/text.h"
#include "hrm/config/schema.h"
#include "json_entries.h"

namespace hrm::config {
namespace {

using nlohmann::json;

constexpr const char* kSeeKeys = "'hrm_train config --describe' lists all keys";

// Names that users of older systems type, and what they and their values are called here.
struct OtherName {
  const char* name;
  const char* key;
  const char* value = nullptr;
  const char* means = nullptr;
};
constexpr OtherName kOtherNames[] = {
    {"train.mixed_precision", "runtime.precision", "none", "fp32"},
    {"train.enable_tf32", "runtime.tf32"},
};

std::string canonical(const std::string& key) {
  for (const OtherName& other : kOtherNames) {
    if (key == other.name) return other.key;
  }
  return key;
}

json canonical_value(const std::string& key, json value) {
  for (const OtherName& other : kOtherNames) {
    if (key == other.name && other.value && value == other.value) return other.means;
  }
  return value;
}

// Foreign text for a message: harmless to a terminal and not longer than a line.
std::string shortened(const std::string& text) {
  constexpr size_t kLongest = 80;
  return text.size() > kLongest ? text.substr(0, kLongest - 3) + "..." : text;
}

std::string shown(const std::string& text) {
  return printable(shortened(text));
}

std::string shown(const json& value) {
  return safe_json(shortened(value.dump(-1, ' ', false, json::error_handler_t::replace)));
}

bool is_section(const std::string& key) {
  for (const Section& section : sections()) {
    if (section.name == key) return true;
  }
  return false;
}

std::string first_key_of(const std::string& section) {
  for (const Field& field : fields()) {
    if (field.section == section) return field.key;
  }
  return section;
}

// Where a value stands, for messages: "FILE:LINE" or "command line argument 'a=b'".
std::string place(const Origin& origin) {
  if (origin.kind == Origin::Kind::command_line) return "command line argument '" + shown(origin.argument) + "'";
  return origin.text();
}

[[noreturn]] void fail_unknown(const Origin& origin, const std::string& key, const json& value) {
  std::string guess = value.is_object() ? "" : nearest_key(key);
  if (value.is_object()) {
    std::vector<std::string> names;
    for (const Section& section : sections()) names.push_back(section.name);
    guess = nearest_name(key, names);
  }
  fail(ExitCode::usage, place(origin), ": unknown ", value.is_object() ? "section" : "key", " '", shown(key), "'",
       value.is_object() ? "" : " = " + shown(value), guess.empty() ? cat("; ", kSeeKeys) : did_you_mean(guess));
}

// A JSON number as a whole number, if it is one: also 1e5 and 3.0.
std::optional<int64_t> whole_number(const json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
    return static_cast<int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  if (value.is_number_float()) {
    const double number = value.get<double>();
    // Beyond 2^53 a double no longer says which whole number was meant.
    if (std::trunc(number) == number && std::abs(number) <= 0x1p53) return static_cast<int64_t>(number);
  }
  return std::nullopt;
}

// The JSON value in the field's own type, if it has that type.
std::optional<Value> convert(const Field& field, const json& value) {
  if (std::holds_alternative<Flag>(field.rule)) {
    if (value.is_boolean()) return Value(value.get<bool>());
  } else if (std::holds_alternative<IntRange>(field.rule)) {
    if (value.is_number()) {
      if (const auto number = whole_number(value)) return Value(*number);
    }
  } else if (std::holds_alternative<RealRange>(field.rule)) {
    if (value.is_number()) return Value(value.get<double>());
  } else if (value.is_string()) {
    return Value(value.get<std::string>());
  }
  return std::nullopt;
}

void set_value(LoadedConfig& loaded, const std::string& key, const json& value, const Origin& origin) {
  const Field* field = find_field(key);
  if (field == nullptr) fail_unknown(origin, key, value);
  const std::optional<Value> converted = convert(*field, value);
  require(converted.has_value(), ExitCode::usage, place(origin), ": ", key, " = ", shown(value), " must be ",
          describe_rule(field->rule));
  const std::string broken = broken_rule(field->rule, *converted);
  require(broken.empty(), ExitCode::usage, place(origin), ": ", key, " = ", shown(value), " ", broken);
  field->set(loaded.config, *converted);
  loaded.origins[key] = origin;
}

LoadedConfig defaults() {
  LoadedConfig loaded;
  for (const std::string& key : keys()) loaded.origins[key];
  return loaded;
}

void apply_text(LoadedConfig& loaded, const std::string& text, const std::string& name) {
  std::map<std::string, std::string> seen;  // canonical key -> name used
  for (const JsonEntry& entry : parse_json_entries(text, name)) {
    Origin origin;
    origin.kind = Origin::Kind::file;
    origin.file = name;
    origin.line = entry.line;
    if (is_section(entry.key)) {
      require(entry.value.is_object(), ExitCode::usage, place(origin), ": ", entry.key, " = ", shown(entry.value),
              " must be an object, for it is a section: \"", entry.key, "\": { ... }");
      continue;
    }
    const std::string key = canonical(entry.key);
    const auto [first, is_new] = seen.emplace(key, entry.key);
    require(is_new, ExitCode::usage, place(origin), ": '", entry.key, "' = ", shown(entry.value), " and '",
            first->second, "' are two names of one value; keep one of them");
    set_value(loaded, key, canonical_value(entry.key, entry.value), origin);
  }
}

void apply_override(LoadedConfig& loaded, const std::string& argument) {
  Origin origin;
  origin.kind = Origin::Kind::command_line;
  origin.argument = argument;
  const size_t equals = argument.find('=');
  if (equals == std::string::npos || equals == 0) {
    const bool is_file = argument.size() > 5 && argument.ends_with(".json");
    fail(ExitCode::usage, place(origin), " is not of the form key=value, e.g. optim.lr=3e-4",
         is_file ? "; a file is given with --config" : "");
  }
  const std::string typed = argument.substr(0, equals), text = argument.substr(equals + 1);
  const std::string key = canonical(typed);
  require(!is_section(key), ExitCode::usage, place(origin), ": '", key, "' is a section; give one of its keys, e.g. ",
          first_key_of(key), "=VALUE");
  json value = json::parse(text, nullptr, /*allow_exceptions=*/false);
  const Field* field = find_field(key);
  const bool wants_text =
      field && (std::holds_alternative<OneOf>(field->rule) || std::holds_alternative<AnyText>(field->rule));
  // `run.name=2024` is a text although it reads as a number; `run.name="2024"` is the same text.
  if (value.is_discarded() || (wants_text && !value.is_string())) value = text;
  set_value(loaded, key, canonical_value(typed, value), origin);
}

// Defaults that depend on the architecture.
void resolve_defaults(LoadedConfig& loaded) {
  ModelConfig& model = loaded.config.model;
  const auto set_default = [&](const std::string& key, int64_t& member, int64_t value) {
    Origin& origin = loaded.origins[key];
    if (origin.kind != Origin::Kind::standard) return;
    member = value;
    origin.note = "for model.arch " + model.arch;
  };
  if (model.arch != "hrm") set_default("model.H_layers", model.H_layers, 0);
  if (model.arch == "transformer") {
    set_default("model.H_cycles", model.H_cycles, 1);
    set_default("model.L_cycles", model.L_cycles, 1);
  }
}

void finish(LoadedConfig& loaded, const std::vector<std::string>& overrides) {
  for (const std::string& argument : overrides) apply_override(loaded, argument);
  resolve_defaults(loaded);
  check_consistency(loaded);
}

}  // namespace

std::string Origin::text() const {
  switch (kind) {
    case Kind::file:
      return cat(file, ":", line);
    case Kind::command_line:
      return "command line";
    case Kind::standard:
      break;
  }
  return note.empty() ? "default" : "default " + note;
}

std::string LoadedConfig::to_json() const {
  nlohmann::ordered_json out = nlohmann::ordered_json::object();
  for (const Field& field : fields()) {
    std::visit(
        [&](const auto& value) {
          if (field.section.empty()) {
            out[field.key] = value;
          } else {
            out[field.section][field.key.substr(field.section.size() + 1)] = value;
          }
        },
        field.get(config));
  }
  return out.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

LoadedConfig load_config(const std::vector<std::string>& files, const std::vector<std::string>& overrides) {
  LoadedConfig loaded = defaults();
  for (const std::string& file : files) {
    std::string text;
    try {
      text = read_text(file, ExitCode::usage);
    } catch (const Error& e) {
      fail(ExitCode::usage, "--config: ", e.what(), "; the folder configs/ holds complete configurations");
    }
    apply_text(loaded, text, file);
  }
  finish(loaded, overrides);
  return loaded;
}

LoadedConfig config_from_json_text(const std::string& text, const std::string& name,
                                   const std::vector<std::string>& overrides) {
  LoadedConfig loaded = defaults();
  apply_text(loaded, text, name);
  finish(loaded, overrides);
  return loaded;
}

}  // namespace hrm::config
