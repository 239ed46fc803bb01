#include "hrm/data/wordpiece.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "hrm/base/file.h"
#include "support/expect_error.h"
#include "support/paths.h"
#include "support/temp_dir.h"

namespace hrm::data {
namespace {

const std::filesystem::path kFolder = test::source_dir() + "/tests/fixtures/bert_embed";

std::vector<nlohmann::json> sentences() {
  std::ifstream file(kFolder / "sentences.jsonl");
  std::vector<nlohmann::json> all;
  for (std::string line; std::getline(file, line);) all.push_back(nlohmann::json::parse(line));
  return all;
}

WordPiece small(const WordPieceOptions& options = {}) {
  return WordPiece({"[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b", "##b", "ab", "##c", "!", "\xe4\xb8\xad", "\xc3\xa4"},
                   options);
}

TEST(WordPiece, IdsOfTheReference) {
  const std::vector<nlohmann::json> all = sentences();
  ASSERT_GT(all.size(), 50u);
  test::TempDir dir;
  for (const char* name : {"vocab.txt", "tokenizer_config.json"}) {
    if (std::filesystem::exists(kFolder / name)) std::filesystem::copy_file(kFolder / name, dir / name);
  }
  for (const WordPiece& words : {WordPiece::load(kFolder), WordPiece::load(dir.path())}) {
    for (const nlohmann::json& sentence : all) {
      EXPECT_EQ(words.encode(sentence.at("text").get<std::string>(), 24),
                sentence.at("ids").get<std::vector<int32_t>>())
          << sentence.at("text");
    }
  }
}

TEST(WordPiece, ByHand) {
  const WordPiece words = small();
  using Ids = std::vector<int32_t>;
  EXPECT_EQ(words.encode("", 8), (Ids{2, 3}));
  EXPECT_EQ(words.encode("  AB\tabc!a ", 12), (Ids{2, 7, 7, 8, 9, 4, 3}));
  EXPECT_EQ(words.encode("abbx", 8), (Ids{2, 1, 3})) << "a word is unknown as a whole";
  EXPECT_EQ(words.encode("a\xe4\xb8\xad"
                         "a",
                         8),
            (Ids{2, 4, 10, 4, 3}))
      << "an ideograph stands alone";
  EXPECT_EQ(words.encode("\xc3\xa4", 8), (Ids{2, 4, 3})) << "accents go";
  EXPECT_EQ(small({.strip_accents = false}).encode("\xc3\x84", 8), (Ids{2, 11, 3}));
  EXPECT_EQ(small({.lowercase = false}).encode("Ab", 8), (Ids{2, 1, 3}));
  EXPECT_EQ(words.encode(std::string("a\0b\xff", 4), 8), (Ids{2, 7, 3})) << "what is not a text is left out";
  EXPECT_EQ(words.encode("a\xef\xbf\xbf", 8), (Ids{2, 1, 3})) << "what is not assigned stays";
  EXPECT_EQ(words.encode("a\xc2\xad\xee\x80\x80"
                         "b",
                         8),
            (Ids{2, 7, 3}))
      << "a soft hyphen and private characters go";
  EXPECT_EQ(words.encode(std::string(101, 'a'), 8), (Ids{2, 1, 3})) << "too long a word";
  EXPECT_EQ(words.encode("a a a a a", 4), (Ids{2, 4, 4, 3})) << "cut";
  EXPECT_EQ(words.encode("abcc a", 4), (Ids{2, 7, 8, 3})) << "cut inside of a word";
  EXPECT_EQ(words.encode("a", 2), (Ids{2, 3}));
}

TEST(WordPiece, BadFiles) {
  test::TempDir dir;
  const auto write = [&](const char* name, const std::string& text) { write_text_atomic(dir / name, text); };
  const auto expect = [&](const std::vector<std::string>& parts) {
    test::expect_error(ExitCode::data, parts, [&] { WordPiece::load(dir.path()); });
  };
  expect({"neither tokenizer.json nor vocab.txt"});
  write("vocab.txt", "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12\n");
  expect({"vocab.txt: this is a Git LFS pointer"});
  std::filesystem::remove(dir / "vocab.txt");
  write("tokenizer.json", R"({"model": {"type": "BPE"}})");
  expect({"tokenizer.json", "not WordPiece"});
  write("tokenizer.json", R"({"model": {"type": "WordPiece", "vocab": {"[UNK]": 0, "a": 2}}})");
  expect({"each id from 0 on once"});
  write("tokenizer.json", R"({"model": {"type": "WordPiece", "vocab": {"[UNK]": 0}}, "normalizer": {"type": "NFC"}})");
  expect({"BertNormalizer"});
  nlohmann::json whole = nlohmann::json::parse(read_text(kFolder / "tokenizer.json", ExitCode::data));
  const auto changed = [&](const char* path, const nlohmann::json& value) {
    nlohmann::json other = whole;
    other[nlohmann::json::json_pointer(path)] = value;
    write("tokenizer.json", other.dump());
  };
  changed("/model/unk_token", "A");
  expect({"'unk_token' must be [UNK]"});
  changed("/pre_tokenizer", {{"type", "Whitespace"}});
  expect({"BertPreTokenizer"});
  changed("/post_processor", nullptr);
  expect({"[CLS] and [SEP]"});
  // Of both files tokenizer.json, which knows whether a model is uncased.
  changed("/normalizer/lowercase", false);
  write("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n");
  EXPECT_EQ(WordPiece::load(dir.path()).vocab_size(), static_cast<int64_t>(whole["model"]["vocab"].size()));
  std::filesystem::remove(dir / "tokenizer.json");
  write("vocab.txt", "[PAD]\n[UNK]\n[CLS]\na\n");
  expect({"vocab.txt", "[SEP] is missing"});
  write("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\na\na\n");
  expect({"the token 'a' occurs twice, as 4 and as 5"});
  write("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n\xff\n");
  expect({"not UTF-8"});
  write("vocab.txt", "[PAD]\r\n[UNK]\r\n[CLS]\r\n[SEP]\r\na");
  EXPECT_EQ(WordPiece::load(dir.path()).vocab_size(), 5);
  write("tokenizer_config.json", R"({"do_lower_case": "yes"})");
  expect({"tokenizer_config.json", "do_lower_case"});
  write("tokenizer_config.json", R"({"do_lower_case": false})");
  EXPECT_EQ(WordPiece::load(dir.path()).encode("A", 4), (std::vector<int32_t>{2, 1, 3}));
  test::expect_error(ExitCode::usage, {"a sentence of 1"}, [&] { small().encode("a", 1); });
}

}  // namespace
}  // namespace hrm::data
