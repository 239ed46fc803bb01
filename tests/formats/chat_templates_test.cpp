// Templates of models against transformers' own rendering. The templates are those of the wheels trl and axolotl
// (scripts/requirements/chat_templates.txt): below HRM_CHAT_TEMPLATES, else below the Python packages of the build.
// make_chat_renderings.py wrote what the library gave.
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "formats/format_testing.h"
#include "hrm/formats/jinja.h"

namespace hrm {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kRefused = "--------";

// The low 32 bits of FNV-1a of 64 bits, in hex.
std::string fnv(const std::string& bytes) {
  uint64_t value = 0xCBF29CE484222325;
  for (const char byte : bytes) value = (value ^ static_cast<unsigned char>(byte)) * 0x100000001B3;
  char text[9];
  std::snprintf(text, sizeof text, "%08x", static_cast<unsigned>(value & 0xFFFFFFFF));
  return text;
}

std::string digest_of(const JinjaTemplate& one, const Json& variables) {
  try {
    const JinjaOutput output = one.render(variables, {.year = 2026, .month = 11, .day = 25});
    std::string places;
    for (const auto& [begin, end] : output.generated) places += cat(places.empty() ? "" : ",", begin, "-", end);
    return fnv(output.text + std::string(1, '\0') + places);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::data);
    return kRefused;
  }
}

TEST(ChatTemplates, EqualTheLibrary) {
  const char* chosen = std::getenv("HRM_CHAT_TEMPLATES");
  const fs::path folder = chosen != nullptr ? chosen : test::site_packages();
  const Json renderings = Json::parse(read_text(fixture("formats/chat_renderings.json"), ExitCode::data));
  const Json conversations = Json::parse(read_text(fixture("formats/chat_conversations.json"), ExitCode::data));
  ASSERT_GE(renderings.size(), 18U);
  ASSERT_EQ(conversations.size(), 40U);
  if (!fs::exists(folder / renderings.begin().key())) {
    GTEST_SKIP() << "trl and axolotl are not in " << folder << " (scripts/setup test installs them)";
  }
  int rendered = 0;
  for (const auto& [name, expected] : renderings.items()) {
    const JinjaTemplate one(read_text(folder / name, ExitCode::data), name);
    const std::string digests = expected;
    ASSERT_EQ(digests.size(), 8 * conversations.size()) << name;
    for (size_t i = 0; i < conversations.size(); ++i) {
      const std::string wanted = digests.substr(8 * i, 8);
      EXPECT_EQ(digest_of(one, conversations[i]["variables"]), wanted) << name << ", conversation " << i;
      rendered += wanted != kRefused ? 1 : 0;
    }
  }
  // Most conversations suit most templates: the comparison is one of texts, not of refusals.
  EXPECT_GT(rendered, static_cast<int>(renderings.size()) * 30);
}

}  // namespace
}  // namespace hrm
