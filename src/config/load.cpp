#include "hrm/config/load.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "consistency.h"
#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/base/text.h"
#include "hrm/config/schema.h"
#include "hrm/config/task_settings.h"
#include "json_entries.h"

namespace hrm::config {
namespace {

using nlohmann::json;

constexpr const char* kSeeKeys = "'hrm_train config --describe' lists all keys";

// A setting that there is no choice about any more: only what is always done is accepted.
constexpr const char* kFp8Format = "train.fp8.format";
constexpr const char* kFp8Interval = "train.fp8.recipe.interval";
constexpr const char* kFp8Algorithm = "train.fp8.recipe.amax_compute_algo";
// These have no field of their own: see set_legacy.
constexpr const char* kMixedPrecision = "train.mixed_precision";
constexpr const char* kTf32 = "train.enable_tf32";
constexpr const char* kStaticShapes = "static_shapes";
constexpr const char* kCaptureBatch = "capture_batch_size";

constexpr const char* kFrameMode = "contrastive.frame_mode";

constexpr const char* kLegacy[] = {kFp8Format, kFp8Interval,  kFp8Algorithm, kMixedPrecision,
                                   kTf32,      kStaticShapes, kCaptureBatch, kFrameMode};

// The field that another name stands for, and that name; nullptr: none.
std::pair<const Field*, const OtherName*> find_other_name(const std::string& key) {
  for (const Field& field : fields()) {
    for (const OtherName& other : field.other_names) {
      if (key == other.name) return {&field, &other};
    }
  }
  return {nullptr, nullptr};
}

std::string canonical(const std::string& key) {
  if (key == "runtime.tf32") return kTf32;
  const Field* field = find_other_name(key).first;
  return field != nullptr ? field->key : key;
}

// A value that is not of the expected type stays as it is; the rule of the field refuses it.
json canonical_value(const std::string& key, const json& value) {
  const OtherName* other = find_other_name(key).second;
  return other != nullptr && other->inverted && value.is_boolean() ? json(!value.get<bool>()) : value;
}

bool is_legacy(const std::string& key) {
  return std::find(std::begin(kLegacy), std::end(kLegacy), key) != std::end(kLegacy);
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

// Whether `key` is a group within a section, e.g. "profiling.nvtx" of profiling.nvtx.enabled or "train.fp8".
bool is_group(const std::string& key) {
  const auto begins = [prefix = key + "."](const std::string& name) { return name.starts_with(prefix); };
  const auto has_one = [&](const Field& field) {
    return begins(field.key) || std::any_of(field.other_names.begin(), field.other_names.end(),
                                            [&](const OtherName& other) { return begins(other.name); });
  };
  return std::any_of(fields().begin(), fields().end(), has_one) ||
         std::any_of(std::begin(kLegacy), std::end(kLegacy), begins);
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

std::string first_key_in(const std::string& group) {
  for (const std::string& key : keys()) {
    if (key.starts_with(group + ".")) return key;
  }
  return "";
}

[[noreturn]] void fail_unknown(const Origin& origin, const std::string& key, const json& value) {
  if (const std::string inside = first_key_in(key); !inside.empty() && !value.is_object()) {
    fail(ExitCode::usage, place(origin), ": '", shown(key), "' = ", shown(value),
         " holds several keys; give one of them, e.g. ", inside);
  }
  if (const std::string answer = value.is_object() ? "" : answer_to_foreign_name(key); !answer.empty()) {
    fail(ExitCode::usage, place(origin), ": unknown key '", shown(key), "' = ", shown(value), answer);
  }
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

// `typed`: the name that the user gave, where it is another one.
void set_value(LoadedConfig& loaded, const std::string& key, const json& value, const Origin& origin,
               const std::string& typed = "") {
  const Field* field = find_field(key);
  if (field == nullptr) fail_unknown(origin, key, value);
  const std::string name = typed.empty() || typed == key ? key : cat(shown(typed), " (today ", key, ")");
  const std::optional<Value> converted = convert(*field, value);
  require(converted.has_value(), ExitCode::usage, place(origin), ": ", name, " = ", shown(value), " must be ",
          describe_rule(field->rule));
  const std::string broken = broken_rule(field->rule, *converted);
  require(broken.empty(), ExitCode::usage, place(origin), ": ", name, " = ", shown(value), " ", broken);
  field->set(loaded.config, *converted);
  loaded.origins[key] = origin;
}

// A configuration on its way, and what older names said that takes other values to decide.
struct Loading {
  LoadedConfig loaded;
  std::optional<bool> tf32;  // train.enable_tf32: whether an "fp32" of the old meaning uses TF32 products
  // Whether train.mixed_precision is fp8, and train.fp8.format: the task decides about the keys that they set.
  std::optional<bool> fp8;
  std::optional<std::string> fp8_format;
  Origin fp8_origin, fp8_format_origin;
  std::optional<int64_t> capture_batch;
  Origin capture_batch_origin;

  Loading() {
    for (const std::string& key : keys()) loaded.origins[key];
  }
};

// Older names without a field of their own.
void set_legacy(Loading& loading, const std::string& key, const json& value, const Origin& origin) {
  const auto need = [&](bool fits, const auto&... rule) {
    require(fits, ExitCode::usage, place(origin), ": ", key, " = ", shown(value), " ", rule...);
  };
  if (key == kFp8Format) {
    need(value == "e4m3" || value == "hybrid", "is not possible: use e4m3, or hybrid in task language");
    loading.fp8_format = value.get<std::string>();
    loading.fp8_format_origin = origin;
  } else if (key == kFp8Interval) {
    need(value == 1, "is not possible: fp8 scales are renewed at every step; leave it out");
  } else if (key == kFp8Algorithm) {
    need(value == "max", "is not possible: fp8 scales follow the maximum of their history; leave it out");
  } else if (key == kMixedPrecision) {
    const bool fp8 = value == "fp8";
    set_value(loading.loaded, "precision.compute",
              value == "none" ? json("fp32")
              : fp8           ? json("bf16")
                              : value,
              origin, key);
    loading.fp8 = fp8;
    loading.fp8_origin = origin;
  } else if (key == kTf32) {
    need(value.is_boolean(), "must be true or false");
    loading.tf32 = value.get<bool>();
  } else if (key == kStaticShapes) {
    need(value.is_boolean(), "must be true or false");
    if (!value.get<bool>()) set_value(loading.loaded, "runtime.cuda_graphs", false, origin);
  } else if (key == kFrameMode) {
    // Trainer2's three frames are two settings here, which may be combined.
    need(value != "learned_lowrank", "is a number of directions here; set contrastive.lowrank_r to 1 or more");
    need(value == "rotor" || value == "derived", "must be one of rotor, derived, learned_lowrank");
    set_value(loading.loaded, "contrastive.rotor_mode", value == "rotor" ? "stateful" : "derived", origin);
  } else {
    const int64_t rows = value.is_number() ? whole_number(value).value_or(-1) : -1;
    need(rows >= 0, "must be a whole number, at least 0");
    loading.capture_batch = rows;
    loading.capture_batch_origin = origin;
  }
}

void set_any(Loading& loading, const std::string& typed, const std::string& key, const json& value,
             const Origin& origin) {
  if (is_legacy(key)) return set_legacy(loading, key, value, origin);
  set_value(loading.loaded, key, canonical_value(typed, value), origin, typed);
  // Who says it in today's words means today's "fp32", exact, whatever an older file said about TF32.
  if (typed == "precision.compute") loading.tf32.reset();
  if (typed == "precision.recursions" || typed == "precision.blocks") loading.fp8.reset();
  if (typed == "precision.fp8_gradients") loading.fp8_format.reset();
}

// A number of steps to trace, given without saying whether, says it.
void imply_trace(Loading& loading, const Origin& origin) {
  set_value(loading.loaded, "profiling.trace", loading.loaded.config.profiling.trace_steps > 0, origin);
}

void apply_text(Loading& loading, const std::string& text, const std::string& name) {
  std::map<std::string, std::string> seen;  // canonical key -> name used
  std::map<std::string, Origin> places;
  std::optional<bool> tf32;
  for (const JsonEntry& entry : parse_json_entries(text, name)) {
    Origin origin;
    origin.kind = Origin::Kind::file;
    origin.file = name;
    origin.line = entry.line;
    if (entry.key == "$schema" && entry.value.is_string()) continue;  // for editors: see json_schema.h
    if (is_section(entry.key)) {
      require(entry.value.is_object(), ExitCode::usage, place(origin), ": ", entry.key, " = ", shown(entry.value),
              " must be an object, for it is a section: \"", entry.key, "\": { ... }");
      continue;
    }
    if (entry.value.is_object() && is_group(entry.key)) continue;  // its members follow
    const std::string key = canonical(entry.key);
    const auto [first, is_new] = seen.emplace(key == kMixedPrecision ? "precision.compute" : key, entry.key);
    require(is_new, ExitCode::usage, place(origin), ": '", shown(entry.key), "' = ", shown(entry.value), " and '",
            shown(first->second), "' are two names of one value; keep one of them");
    set_any(loading, entry.key, key, entry.value, origin);
    places[key] = origin;
    // Entries of a file have no order: what it says about TF32 holds for the precision that it names.
    if (key == kTf32) tf32 = loading.tf32;
  }
  if (tf32) loading.tf32 = tf32;
  if (seen.count("profiling.trace_steps") && !seen.count("profiling.trace")) {
    imply_trace(loading, places.at("profiling.trace_steps"));
  }
}

void apply_override(Loading& loading, const std::string& argument) {
  Origin origin;
  origin.kind = Origin::Kind::command_line;
  origin.argument = argument;
  const size_t equals = argument.find('=');
  if (equals == std::string::npos || equals == 0) {
    const bool is_file = argument.size() > 5 && argument.ends_with(".json");
    fail(ExitCode::usage, place(origin), " is not of the form key=value, e.g. optim.lr=3e-4",
         is_file ? "; a file is given with --config" : "");
  }
  // The configuration is kept as JSON, which would hold another text.
  require(is_utf8(argument), ExitCode::usage, place(origin), " is not UTF-8; rename what it stands for");
  const std::string typed = argument.substr(0, equals), text = argument.substr(equals + 1);
  const std::string key = canonical(typed);
  require(!is_section(key), ExitCode::usage, place(origin), ": '", key, "' is a section; give one of its keys, e.g. ",
          first_key_of(key), "=VALUE");
  // No key takes a list or an object: as a text it is refused with it, whatever nests inside.
  const size_t first = std::min(text.find_first_not_of(" \t\r\n"), text.size());
  const bool container = first < text.size() && (text[first] == '[' || text[first] == '{');
  json value = container ? json(text) : json::parse(text, nullptr, /*allow_exceptions=*/false);
  const Field* field = find_field(key);
  const bool wants_text = field && !std::holds_alternative<Flag>(field->rule) &&
                          !std::holds_alternative<IntRange>(field->rule) &&
                          !std::holds_alternative<RealRange>(field->rule);
  // `run.name=2024` is a text although it reads as a number; `run.name="2024"` is the same text.
  if (value.is_discarded() || (wants_text && !value.is_string())) value = text;
  set_any(loading, typed, key, value, origin);
  // What the same line says by itself holds, in any order.
  const bool said = loading.loaded.origins["profiling.trace"].argument.starts_with("profiling.trace=");
  if (key == "profiling.trace_steps" && !said) imply_trace(loading, origin);
}

// What older names left open, once all values are known.
void resolve_legacy(Loading& loading) {
  LoadedConfig& loaded = loading.loaded;
  ComputePrecision& compute = loaded.config.precision.compute;
  if (loading.tf32 && (compute == ComputePrecision::fp32 || compute == ComputePrecision::tf32)) {
    compute = *loading.tf32 ? ComputePrecision::tf32 : ComputePrecision::fp32;
  }
  const bool blocks = is_read_by(*find_field("precision.blocks"), loaded.config.task);
  if (loading.fp8) {
    set_value(loaded, blocks ? "precision.blocks" : "precision.recursions", *loading.fp8 ? "fp8" : "same",
              loading.fp8_origin);
  }
  if (!loading.fp8_format) return;
  const bool hybrid = *loading.fp8_format == "hybrid";
  require(blocks || !hybrid, ExitCode::usage, place(loading.fp8_format_origin), ": ", kFp8Format,
          " = hybrid is not possible: fp8 recursions have no gradients and use e4m3; leave it out");
  if (blocks) {
    set_value(loaded, "precision.fp8_gradients", hybrid ? "e5m2" : "e4m3", loading.fp8_format_origin);
  }
}

// Once the defaults are known, too.
void check_capture_batch(const Loading& loading) {
  if (!loading.capture_batch || *loading.capture_batch == 0) return;
  const TrainConfig& train = loading.loaded.config.train;
  const int64_t batch = train.micro_batch_size > 0 ? train.micro_batch_size : train.global_batch_size;
  require(*loading.capture_batch == batch || *loading.capture_batch == train.global_batch_size, ExitCode::usage,
          place(loading.capture_batch_origin), ": capture_batch_size = ", *loading.capture_batch,
          " is not the batch of the run (train.global_batch_size = ", train.global_batch_size,
          "), which is what is captured; leave it out");
}

// Defaults that depend on the task and on what else was set.
void resolve_defaults(LoadedConfig& loaded) {
  for (const TaskDefault& other : task_settings(loaded.config).defaults) {
    Origin& origin = loaded.origins[other.key];
    if (origin.kind != Origin::Kind::standard) continue;
    const std::optional<TaskDefault::Chosen> choice = other.choose(loaded);
    if (!choice) continue;
    find_field(other.key)->set(loaded.config, choice->value);
    origin.note = choice->note.empty() ? "for task " + loaded.config.task : choice->note;
  }
}

// A list of paths: each begins behind a comma, or behind the colon of its name.
std::string expand_home_in_list(const std::string& list) {
  std::string out;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find_first_of(",:", begin), list.size());
    const size_t first = std::min(list.find_first_not_of(" \t", begin), end);
    out += list.substr(begin, first - begin) + expand_home(list.substr(first, end - first)) + list.substr(end, 1);
    begin = end + 1;
  }
  return out;
}

// Home folders, once it is known whether a text is a list.
void expand_paths(LoadedConfig& loaded) {
  for (const Field& field : fields()) {
    const auto* const rule = std::get_if<PathText>(&field.rule);
    if (rule == nullptr) continue;
    const auto text = std::get<std::string>(field.get(loaded.config));
    const bool list = rule->list && task_settings(loaded.config).lists_paths;
    try {
      field.set(loaded.config, list ? expand_home_in_list(text) : expand_home(text));
    } catch (const Error& error) {
      fail(error.code(), place(loaded.origins[field.key]), ": ", field.key, ": ", error.what());
    }
  }
}

Loading read_files(const std::vector<std::string>& files) {
  Loading loading;
  for (const std::string& file : files) {
    std::string text;
    try {
      text = read_text(file, ExitCode::usage, kMaxConfigBytes);
    } catch (const Error& e) {
      fail(ExitCode::usage, "--config: ", e.what(), "; the folder configs/ holds complete configurations");
    }
    apply_text(loading, text, file);
  }
  return loading;
}

void apply_overrides(Loading& loading, const std::vector<std::string>& overrides) {
  for (const std::string& argument : overrides) apply_override(loading, argument);
}

LoadedConfig finish(Loading loading, const std::vector<std::string>& overrides) {
  apply_overrides(loading, overrides);
  resolve_legacy(loading);
  resolve_defaults(loading.loaded);
  check_capture_batch(loading);
  expand_paths(loading.loaded);
  check_consistency(loading.loaded);
  return std::move(loading.loaded);
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
            nlohmann::ordered_json* place = &out[field.section];
            std::string rest = field.key.substr(field.section.size() + 1);
            for (size_t dot; (dot = rest.find('.')) != std::string::npos; rest = rest.substr(dot + 1)) {
              place = &(*place)[rest.substr(0, dot)];
            }
            (*place)[rest] = value;
          }
        },
        field.get(config));
  }
  return out.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

LoadedConfig load_config(const std::vector<std::string>& files, const std::vector<std::string>& overrides) {
  return finish(read_files(files), overrides);
}

std::string task_of(const std::vector<std::string>& files, const std::vector<std::string>& overrides) {
  Loading loading = read_files(files);
  apply_overrides(loading, overrides);
  return loading.loaded.by_default("task") ? "" : loading.loaded.config.task;
}

LoadedConfig config_from_json_text(const std::string& text, const std::string& name,
                                   const std::vector<std::string>& overrides) {
  Loading loading;
  apply_text(loading, text, name);
  return finish(std::move(loading), overrides);
}

}  // namespace hrm::config
