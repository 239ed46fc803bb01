// What the fuzz targets of configurations are given to make inputs of (tests/fuzz/dictionaries).
#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "hrm/base/text.h"
#include "hrm/config/schema.h"
#include "support/paths.h"

namespace hrm::config {
namespace {

std::set<std::string> lines_of(const std::string& name) {
  std::ifstream in(test::source_dir() + "/tests/fuzz/dictionaries/" + name);
  std::set<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.insert(line);
  EXPECT_FALSE(lines.empty()) << name;
  return lines;
}

std::vector<std::string> values_of(const Field& field) {
  const auto* rule = std::get_if<OneOf>(&field.rule);
  return rule == nullptr ? std::vector<std::string>() : rule->values;
}

TEST(FuzzDictionaries, HoldEverySectionKeyAndChoiceOfAFile) {
  const std::set<std::string> lines = lines_of("config.dict");
  const auto has = [&](const std::string& name) {
    EXPECT_TRUE(lines.count("\"\\x22" + name + "\\x22:\"")) << "\"\\x22" << name << "\\x22:\" is missing";
  };
  for (const Section& section : sections()) has(section.name);
  for (const Field& field : fields()) {
    std::string rest = field.section.empty() ? field.key : field.key.substr(field.section.size() + 1);
    for (size_t dot; (dot = rest.find('.')) != std::string::npos; rest = rest.substr(dot + 1)) has(rest.substr(0, dot));
    has(rest);
    for (const std::string& value : values_of(field)) {
      EXPECT_TRUE(lines.count("\"\\x22" + value + "\\x22\"")) << field.key << ": " << value << " is missing";
    }
  }
}

TEST(FuzzDictionaries, HoldEverySectionKeyAndChoiceOfACommandLine) {
  const std::set<std::string> lines = lines_of("config_arguments.dict");
  const auto has = [&](const std::string& word) {
    EXPECT_TRUE(lines.count("\"" + word + "\"")) << word << " is missing";
  };
  for (const Section& section : sections()) has(section.name + ".");
  for (const Field& field : fields()) {
    has(field.section.empty() ? field.key : field.key.substr(field.section.size() + 1));
    for (const std::string& value : values_of(field)) has(value);
  }
}

}  // namespace
}  // namespace hrm::config
