#include "hrm/formats/text_template.h"

#include "formats/format_testing.h"

namespace hrm {
namespace {

using Names = std::vector<std::string>;

std::string filled(const std::string& text) {
  return TextTemplate(text, "t").fill([](const std::string& name) { return "<" + name + ">"; });
}

TEST(TextTemplate, PutsValuesInTheirPlaces) {
  EXPECT_EQ(filled(""), "");
  EXPECT_EQ(filled("no place\n"), "no place\n");
  EXPECT_EQ(filled("{a}"), "<a>");
  EXPECT_EQ(filled("x{a}{b_1.c-D}y{a}"), "x<a><b_1.c-D>y<a>");
  EXPECT_EQ(filled("{{a}} {{{a}}} }}{{"), "{a} {<a>} }{");
  EXPECT_EQ(TextTemplate("{b}{a}{b}", "t").names(), (Names{"b", "a"}));
  EXPECT_TRUE(TextTemplate("{b}", "t").has("b"));
  EXPECT_FALSE(TextTemplate("{{b}}", "t").has("b"));
}

TEST(TextTemplate, ValuesAreNoTemplates) {
  const TextTemplate text("[{a}]", "t");
  EXPECT_EQ(text.fill([](const std::string&) { return "{a} {{ }"; }), "[{a} {{ }]");
}

TEST(TextTemplate, RefusesOtherBraces) {
  const auto refused = [](const std::string& text, const std::string& part) {
    expect_error([&] { TextTemplate(text, "instruction"); }, ExitCode::usage, {"instruction: ", part});
  };
  refused("abc {", "a single '{' at character 5");
  refused("}", "a single '}' at character 1");
  refused("{a", "a single '{' at character 1");
  refused("{}", "'' at character 2 is not a name");
  refused("{a b}", "'a b' at character 2 is not a name");
  refused("{{{a}}", "a single '}' at character 6");
  refused("{\x01}", "'\\x01'");
  refused("{" + std::string(65, 'a') + "}", "is not a name");
  EXPECT_EQ(filled("{" + std::string(64, 'a') + "}").size(), 66u);
}

}  // namespace
}  // namespace hrm
