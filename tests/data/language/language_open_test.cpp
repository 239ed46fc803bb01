#include "hrm/data/language_open.h"

#include "data/language/language_support.h"
#include "hrm/base/error.h"

namespace hrm::data {
namespace {

using test::TempDir;

// The sentence with which these settings are refused; empty when the folders are read with them.
std::string fault(const std::vector<std::string>& overrides, const std::string& file = "{}") {
  std::vector<std::string> all{"task=language", "lm.arch=decoder"};
  all.insert(all.end(), overrides.begin(), overrides.end());
  try {
    check_language_settings(config::config_from_json_text(file, "a.json", all));
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::usage);
    return e.what();
  }
  return "";
}

TEST(LanguageSettings, WhatTheDataHaveNoUseForIsRefused) {
  const TempDir dir;
  const std::string triples = triple_folder(dir / "triples", 4).string();
  const std::string packed = token_folder(dir / "packed", {{5, 6}}).string();
  const std::string of_triples = "data.train=" + triples, of_packed = "data.train=" + packed + "*2";

  const std::string masks = fault({of_triples, "data.document_masks=true"});
  EXPECT_TRUE(masks.starts_with("data.document_masks = true (command line) has no effect, for data.train = ")) << masks;
  EXPECT_NE(masks.find("holds triples"), std::string::npos) << masks;
  EXPECT_EQ(fault({of_packed, "data.document_masks=true"}), "");
  for (const std::string& argument : {std::string("data.max_malformed=5"), std::string("data.cache=stream")}) {
    const std::string sentence = fault({of_packed, argument});
    EXPECT_TRUE(sentence.starts_with(argument.substr(0, argument.find('=')) + " = ")) << sentence;
    EXPECT_NE(sentence.find("packed text"), std::string::npos) << sentence;
    EXPECT_EQ(fault({of_triples, argument}), "");
    // Read with one of the folders.
    EXPECT_EQ(fault({of_packed, argument, "data.test=old:" + triples}), "");
    EXPECT_NE(fault({of_packed, argument, "data.test=none"}), "");
  }
  EXPECT_EQ(fault({of_triples, "data.document_masks=true", "data.test=" + packed}), "");
}

TEST(LanguageSettings, OtherDataThanAFilesMayBeGiven) {
  const TempDir dir;
  const std::string packed = "data.train=" + token_folder(dir / "packed", {{5}}).string();
  const std::string file = R"({"data": {"max_malformed": 5, "cache": "memory"}})";
  EXPECT_EQ(fault({packed}, file), "");
  EXPECT_NE(fault({packed, "data.cache=stream"}, file), "");
  // What is no folder of language data is refused where it is opened, by a sentence of its own.
  EXPECT_EQ(fault({"data.train=" + (dir / "nowhere").string(), "data.document_masks=true"}), "");
}

}  // namespace
}  // namespace hrm::data
