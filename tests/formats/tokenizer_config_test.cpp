#include "hrm/formats/tokenizer_config.h"

#include "formats/format_testing.h"

namespace hrm {
namespace {

using Templates = std::vector<std::pair<std::string, std::string>>;

TokenizerConfig parse_config(const std::string& text) {
  return parse_tokenizer_config(text, "c.json", ExitCode::data);
}

TEST(TokenizerConfig, ReadsTokensAndTemplate) {
  const TokenizerConfig one = parse_config(
      R"({"bos_token": null, "eos_token": "<|im_end|>", "pad_token": {"__type": "AddedToken", "content": "<pad>"},
          "chat_template": "{% for m in messages %}", "model_max_length": 131072, "x": {"y": [1]}})");
  EXPECT_EQ(one.bos_token, "");
  EXPECT_EQ(one.eos_token, "<|im_end|>");
  EXPECT_EQ(one.pad_token, "<pad>");
  EXPECT_EQ(one.chat_templates, (Templates{{"default", "{% for m in messages %}"}}));
  const TokenizerConfig none = parse_config("{}");
  EXPECT_TRUE(none.eos_token.empty() && none.chat_templates.empty());
}

TEST(TokenizerConfig, ReadsNamedTemplatesAndAllTokens) {
  EXPECT_EQ(parse_config(
                R"({"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]})")
                .chat_templates,
            (Templates{{"tool_use", "t"}, {"default", "d"}}));
  const TokenizerConfig one =
      parse_config(R"({"unk_token": "u", "sep_token": "s", "cls_token": {"content": "c"}, "mask_token": null})");
  EXPECT_EQ(one.unk_token + one.sep_token + one.cls_token + one.mask_token, "usc");
}

TEST(TokenizerConfig, RefusesOtherForms) {
  const auto refused = [](const std::string& text, const std::string& part) {
    expect_error([&] { parse_config(text); }, ExitCode::data, {"c.json: ", part});
  };
  refused("", "is not valid JSON");
  refused("[]", "must be an object");
  refused(R"({"eos_token": 3})", "\"eos_token\" is not of a known form");
  refused(R"({"pad_token": {"id": 3}})", "\"pad_token\"");
  refused(R"({"bos_token": {"content": 3}})", "\"bos_token\"");
  refused(R"({"chat_template": 1})", "\"chat_template\"");
  refused(R"({"chat_template": ["a"]})", "\"chat_template\"");
  refused(R"({"chat_template": [{"name": "a", "template": "t"}, {"name": "a", "template": "t"}]})", "two templates");
  refused(R"({"unk_token": 1})", "\"unk_token\"");
  refused(R"({"chat_template": [{"name": "default"}]})", "\"chat_template\"");
  refused(R"({"chat_template": [{"name": "default", "template": 1}]})", "\"chat_template\"");
}

}  // namespace
}  // namespace hrm
