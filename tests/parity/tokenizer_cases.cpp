// tokenizer: strings with the ids, tokens and decoded texts that another program gives with the case's tokenizer.json.

#include "hrm/data/tokenizer.h"

#include <fstream>

#include "parity/cases.h"

namespace hrm::parity {
namespace {

using nlohmann::json;

void check_tokenizer(const Case& loaded) {
  const data::Tokenizer tokenizer = data::Tokenizer::load(loaded.folder / "tokenizer.json");
  EXPECT_EQ(tokenizer.vocab_size(), loaded.json.at("config").at("vocab_size").get<int64_t>());
  std::ifstream file(loaded.folder / "strings.jsonl");
  size_t count = 0;
  for (std::string line; std::getline(file, line); ++count) {
    const json row = json::parse(line);
    const auto text = row.at("text").get<std::string>();
    const auto want = row.at("ids").get<std::vector<int32_t>>();
    ASSERT_EQ(tokenizer.encode(text), want) << text;
    EXPECT_EQ(tokenizer.decode(want), row.at("decoded").get<std::string>());
    EXPECT_EQ(tokenizer.decode(want, /*skip_special=*/true), row.at("decoded_skip").get<std::string>());
    std::vector<std::string> tokens;
    for (const int32_t id : want) tokens.push_back(tokenizer.token_of(id));
    EXPECT_EQ(tokens, row.at("tokens").get<std::vector<std::string>>()) << text;
  }
  EXPECT_EQ(count, loaded.json.at("count").get<size_t>());
}

const RegisterKind kTokenizer("tokenizer", check_tokenizer);

}  // namespace
}  // namespace hrm::parity
