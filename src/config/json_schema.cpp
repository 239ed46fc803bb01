#include "hrm/config/json_schema.h"

#include <nlohmann/json.hpp>

#include "hrm/base/text.h"
#include "hrm/config/schema.h"
#include "hrm/config/task_settings.h"

namespace hrm::config {
namespace {

using nlohmann::ordered_json;

template <class Range>
void add_limits(ordered_json& schema, const Range& range, bool min_open, bool max_open) {
  const Range any;
  if (range.min != any.min) schema[min_open ? "exclusiveMinimum" : "minimum"] = range.min;
  if (range.max != any.max) schema[max_open ? "exclusiveMaximum" : "maximum"] = range.max;
}

ordered_json schema_of(const Rule& rule) {
  ordered_json schema = ordered_json::object();
  if (std::holds_alternative<Flag>(rule)) {
    schema["type"] = "boolean";
  } else if (const auto* whole = std::get_if<IntRange>(&rule)) {
    schema["type"] = "integer";
    add_limits(schema, *whole, false, false);
  } else if (const auto* real = std::get_if<RealRange>(&rule)) {
    schema["type"] = "number";
    add_limits(schema, *real, real->min_open, real->max_open);
  } else {
    schema["type"] = "string";
    if (const auto* choice = std::get_if<OneOf>(&rule)) schema["enum"] = choice->values;
  }
  return schema;
}

ordered_json schema_of(const Field& field) {
  ordered_json schema = schema_of(field.rule);
  std::string text = field.help;
  if (!field.unit.empty()) text += cat(" (unit: ", field.unit, ")");
  text += defaults_of_tasks(field.key);
  std::visit([&](const auto& value) { schema["default"] = value; }, field.get(Config()));
  schema["description"] = text;
  return schema;
}

ordered_json deprecated(ordered_json schema, const std::string& instead) {
  schema["description"] = "name of older versions; " + instead;
  schema["deprecated"] = true;
  // Visual Studio Code shows this text, and does not offer such a name.
  schema["deprecationMessage"] = instead;
  return schema;
}

// Puts the schema of a dotted key into the objects that hold it, which are made where they are missing.
void add_key(ordered_json& root, const std::string& key, ordered_json schema) {
  ordered_json* object = &root;
  size_t begin = 0;
  for (size_t dot; (dot = key.find('.', begin)) != std::string::npos; begin = dot + 1) {
    object = &(*object)["properties"][key.substr(begin, dot - begin)];
    if (object->is_null()) (*object)["type"] = "object";
  }
  (*object)["properties"][key.substr(begin)] = std::move(schema);
}

void add_older_names(ordered_json& root) {
  for (const Field& field : fields()) {
    for (const OtherName& other : field.other_names) {
      const std::string instead = cat("use ", field.key, other.inverted ? ", which is the opposite" : "");
      add_key(root, other.name, deprecated(schema_of(field.rule), instead));
    }
  }
  const auto flag = [&](const char* name, const char* instead) {
    add_key(root, name, deprecated({{"type", "boolean"}}, instead));
  };
  flag("runtime.tf32", "use precision.compute: tf32 or fp32");
  flag("train.enable_tf32", "use precision.compute: tf32 or fp32");
  flag("static_shapes", "shapes never change; leave it out, or set runtime.cuda_graphs to false");
  ordered_json mixed = schema_of(find_field("precision.compute")->rule);
  mixed["enum"].push_back("none");
  mixed["enum"].push_back("fp8");
  add_key(root, "train.mixed_precision",
          deprecated(mixed, "use precision.compute, and precision.recursions or precision.blocks"));
  add_key(root, "train.fp8.format", deprecated({{"enum", {"hybrid", "e4m3"}}}, "use precision.fp8_gradients"));
  add_key(root, "train.fp8.recipe.interval", deprecated({{"const", 1}}, "no other is possible; leave it out"));
  add_key(root, "train.fp8.recipe.amax_compute_algo",
          deprecated({{"const", "max"}}, "no other is possible; leave it out"));
  add_key(root, "capture_batch_size",
          deprecated({{"type", "integer"}, {"minimum", 0}}, "the batch of the run is captured; leave it out"));
}

std::string pattern_of(const std::string& name) {
  std::string out = "^";
  for (const char c : name) out += c == '.' ? "\\." : std::string(1, c);
  return out + "$";
}

// Below `object`, which is at `pointer`: a pattern for each name that goes deeper than one object, e.g. "nvtx.enabled"
// in section profiling. Patterns, unlike properties, are not offered when an editor completes a name.
void add_dotted_names(ordered_json& patterns, const ordered_json& object, const std::string& pointer,
                      const std::string& prefix) {
  for (const auto& [name, schema] : object.at("properties").items()) {
    const std::string at = pointer + "/properties/" + name;
    if (!prefix.empty()) patterns[pattern_of(prefix + name)] = {{"$ref", at}};
    if (schema.contains("properties")) add_dotted_names(patterns, schema, at, prefix + name + ".");
  }
}

// Closes an object and those in it: no other names, but dotted ones.
void close_objects(ordered_json& object, const std::string& pointer) {
  ordered_json patterns = ordered_json::object();
  add_dotted_names(patterns, object, pointer, "");
  for (const auto& [name, schema] : object["properties"].items()) {
    if (schema.contains("properties")) close_objects(schema, pointer + "/properties/" + name);
  }
  if (!patterns.empty()) object["patternProperties"] = std::move(patterns);
  object["additionalProperties"] = false;
}

}  // namespace

std::string json_schema() {
  ordered_json root = {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
                       {"title", "configuration of hrm_train"},
                       {"type", "object"}};
  add_key(root, "$schema", {{"type", "string"}, {"description", "file of this schema, for editors; not read"}});
  for (const Section& section : sections()) {
    root["properties"][section.name] = {{"type", "object"}, {"description", section.help}};
  }
  for (const Field& field : fields()) add_key(root, field.key, schema_of(field));
  add_older_names(root);
  close_objects(root, "#");
  return root.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace hrm::config
