#include "hrm/formats/json.h"

#include <nlohmann/json.hpp>

#include "formats/format_testing.h"

namespace hrm {
namespace {

nlohmann::json parse_text(const std::string& text, const JsonLimits& limits = {}) {
  return parse_json(text, "x.json", ExitCode::data, limits);
}

TEST(Json, ReadsWhatIsWithinItsLimits) {
  const auto value = parse_text(R"({"a": [1, -2.5, true, null, "é\n"], "b": {"a": {}}})");
  EXPECT_EQ(value["a"].size(), 5u);
  EXPECT_EQ(value["a"][4], "\u00e9\n");
  EXPECT_EQ(parse_text("3"), 3);
  EXPECT_EQ(parse_text("[[[1]]]", {.depth = 3}).dump(), "[[[1]]]");
  EXPECT_EQ(parse_text("[1]   ", {.bytes = 6}).size(), 1u);
}

TEST(Json, RefusesTheRest) {
  const auto bad = [](const std::string& text, const JsonLimits& limits, const std::vector<std::string>& parts) {
    SCOPED_TRACE(text.substr(0, 50));
    expect_error([&] { parse_text(text, limits); }, ExitCode::data, parts);
  };
  bad("[1]    ", {.bytes = 6}, {"x.json", "7 B is too long", "at most 6 B"});
  bad("[[[1]]]", {.depth = 2}, {"nests more than 2 deep"});
  bad("{\"a\":{\"b\":[]}}", {.depth = 2}, {"nests more than 2 deep"});
  bad("1", {.bytes = 0}, {"too long"});
  // Deep enough to overflow the stack of a function that follows the nesting.
  bad(std::string(500000, '['), {}, {"nests more than 8 deep"});
  bad("{\"a\":1,\"b\":{\"a\":1},\"a\":2}", {}, {"the key 'a' occurs twice"});
  bad("{\"a\\u001b\":1,\"a\\u001b\":2}", {}, {"'a\\x1B' occurs twice"});
  bad("{", {}, {"not valid JSON", "line 1"});
  bad("[1,]", {}, {"not valid JSON"});
  bad("[1] 2", {}, {"not valid JSON"});
  bad("\"\xff\"", {}, {"not valid JSON"});
  bad("", {}, {"not valid JSON"});
  expect_error([] { parse_json("{", "x", ExitCode::checkpoint); }, ExitCode::checkpoint, {});
}

}  // namespace
}  // namespace hrm
