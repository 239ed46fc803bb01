// The schema for editors against the rules that the loader keeps. tests/repo/config_schema_test.py validates with it.
#include "hrm/config/json_schema.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "hrm/base/error.h"
#include "hrm/config/load.h"
#include "hrm/config/schema.h"
#include "support/paths.h"

namespace hrm::config {
namespace {

using nlohmann::json;

const json& schema() {
  static const json instance = json::parse(json_schema());
  return instance;
}

// The schema of a dotted key.
json schema_at(const std::string& key) {
  const json* object = &schema();
  size_t begin = 0;
  for (size_t dot; (dot = key.find('.', begin)) != std::string::npos; begin = dot + 1) {
    object = &object->at("properties").at(key.substr(begin, dot - begin));
  }
  return object->at("properties").at(key.substr(begin));
}

// The schemas of all dotted keys below an object.
std::map<std::string, json> leaves(const json& object, const std::string& prefix = "") {
  std::map<std::string, json> found;
  for (const auto& [name, inner] : object.at("properties").items()) {
    if (inner.contains("properties")) {
      found.merge(leaves(inner, prefix + name + "."));
    } else {
      found.emplace(prefix + name, inner);
    }
  }
  return found;
}

bool allows(const Rule& rule, const Value& value) {
  return broken_rule(rule, value).empty();
}

TEST(JsonSchema, LimitsAreThoseOfTheRules) {
  for (const Field& field : fields()) {
    SCOPED_TRACE(field.key);
    const json leaf = schema_at(field.key);
    const std::string type = leaf.at("type");
    if (std::holds_alternative<Flag>(field.rule)) {
      EXPECT_EQ(type, "boolean");
    } else if (std::holds_alternative<IntRange>(field.rule)) {
      EXPECT_EQ(type, "integer");
      using Limits = std::numeric_limits<int64_t>;
      EXPECT_TRUE(allows(field.rule, leaf.value("minimum", Limits::min())));
      EXPECT_TRUE(allows(field.rule, leaf.value("maximum", Limits::max())));
      EXPECT_FALSE(leaf.contains("minimum") && allows(field.rule, leaf["minimum"].get<int64_t>() - 1));
      EXPECT_FALSE(leaf.contains("maximum") && allows(field.rule, leaf["maximum"].get<int64_t>() + 1));
    } else if (std::holds_alternative<RealRange>(field.rule)) {
      EXPECT_EQ(type, "number");
      for (const auto& [closed, open, outside] :
           {std::tuple{"minimum", "exclusiveMinimum", std::numeric_limits<double>::lowest()},
            std::tuple{"maximum", "exclusiveMaximum", std::numeric_limits<double>::max()}}) {
        if (leaf.contains(open)) {
          const double limit = leaf[open];
          EXPECT_FALSE(allows(field.rule, limit));
          EXPECT_TRUE(allows(field.rule, std::nextafter(limit, -outside)));
        } else if (leaf.contains(closed)) {
          const double limit = leaf[closed];
          EXPECT_TRUE(allows(field.rule, limit));
          EXPECT_FALSE(allows(field.rule, std::nextafter(limit, outside)));
        } else {
          EXPECT_TRUE(allows(field.rule, outside));
        }
      }
    } else {
      EXPECT_EQ(type, "string");
      const auto* choice = std::get_if<OneOf>(&field.rule);
      EXPECT_EQ(leaf.value("enum", std::vector<std::string>()), choice ? choice->values : std::vector<std::string>());
    }
  }
}

TEST(JsonSchema, LeavesHaveDefaultsAndDescriptions) {
  for (const Field& field : fields()) {
    SCOPED_TRACE(field.key);
    const json leaf = schema_at(field.key);
    const Value standard = field.get(Config());
    EXPECT_EQ(leaf.at("default"), json::parse(to_text(standard)));
    const std::string text = leaf.at("description");
    EXPECT_TRUE(text.starts_with(field.help)) << text;
    EXPECT_NE(text.find(field.unit.empty() ? "" : "(unit: " + field.unit + ")"), std::string::npos) << text;
    EXPECT_FALSE(leaf.contains("deprecated"));
  }
  EXPECT_NE(schema_at("optim.lr").at("description").get<std::string>().find("task=polychromic: 2e-4"),
            std::string::npos);
}

TEST(JsonSchema, OtherLeavesAreNamesOfOlderVersionsThatLoad) {
  int older = 0;
  for (const auto& [key, leaf] : leaves(schema())) {
    if (key == "$schema" || find_field(key) != nullptr) continue;
    SCOPED_TRACE(key);
    ++older;
    EXPECT_EQ(leaf.value("deprecated", false), true);
    EXPECT_FALSE(leaf.at("description").get<std::string>().empty());
    json value = leaf.contains("const")      ? leaf["const"]
                 : leaf.contains("enum")     ? leaf["enum"].back()
                 : leaf["type"] == "boolean" ? json(true)
                                             : leaf.at("minimum");
    try {
      config_from_json_text(json{{key, value}}.dump(), "a.json");
    } catch (const Error& error) {
      ADD_FAILURE() << error.what();
    }
  }
  EXPECT_EQ(older, 17);
}

TEST(JsonSchema, ObjectsAreClosedAndTakeDottedNames) {
  const json& root = schema();
  EXPECT_EQ(root.at("$schema"), "https://json-schema.org/draft/2020-12/schema");
  EXPECT_EQ(root.at("additionalProperties"), false);
  for (const Section& section : sections()) {
    const json& object = root.at("properties").at(section.name);
    EXPECT_EQ(object.at("additionalProperties"), false) << section.name;
    EXPECT_EQ(object.at("description"), section.help);
  }
  const std::string nvtx = "#/properties/profiling/properties/nvtx";
  EXPECT_EQ(root.at("patternProperties").at("^profiling\\.nvtx\\.enabled$").at("$ref"), nvtx + "/properties/enabled");
  EXPECT_EQ(root.at("patternProperties").at("^profiling\\.nvtx$").at("$ref"), nvtx);
  EXPECT_EQ(root.at("properties").at("profiling").at("patternProperties").at("^nvtx\\.enabled$").at("$ref"),
            nvtx + "/properties/enabled");
  EXPECT_FALSE(root.at("patternProperties").contains("^task$"));
}

// What the loader says of documents of which the schema says the same (tests/repo/config_schema_test.py).
TEST(JsonSchema, LoaderAgreesInTheCases) {
  std::ifstream file(test::source_dir() + "/tests/config/schema_cases.json");
  const json cases = json::parse(file);
  for (const json& document : cases.at("accepted")) {
    EXPECT_NO_THROW(config_from_json_text(document.dump(), "a.json")) << document;
  }
  for (const json& document : cases.at("refused")) {
    EXPECT_THROW(config_from_json_text(document.dump(), "a.json"), Error) << document;
  }
  EXPECT_GT(cases["accepted"].size(), 15u);
  EXPECT_GT(cases["refused"].size(), 30u);
}

TEST(JsonSchema, LoaderIgnoresItsNameAtTheTopAlone) {
  const LoadedConfig loaded = config_from_json_text(R"({"$schema": "x.json", "optim": {"lr": 0.5}})", "a.json");
  EXPECT_EQ(loaded.config.optim.lr, 0.5);
  EXPECT_EQ(loaded.to_json().find("$schema"), std::string::npos);
  const auto refused = [](const char* text, const std::vector<std::string>& overrides = {}) {
    try {
      config_from_json_text(text, "a.json", overrides);
    } catch (const Error& error) {
      return std::string(error.what()).find("unknown") != std::string::npos;
    }
    return false;
  };
  EXPECT_TRUE(refused(R"({"$schema": 1})"));
  EXPECT_TRUE(refused(R"({"$schema": {}})"));
  EXPECT_TRUE(refused(R"({"$schema": {"$schema": "x.json"}})"));
  EXPECT_TRUE(refused(R"({"optim": {"$schema": "x.json"}})"));
  EXPECT_TRUE(refused("{}", {"$schema=x.json"}));
}

}  // namespace
}  // namespace hrm::config
