#include "hrm/data/tokenizer.h"

#include <gtest/gtest.h>

#include <fstream>

#include "data/tokenizer/tokenizer_cases.h"
#include "hrm/base/file.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace hrm::data {
namespace {

using test::expect_error;
using Ids = std::vector<int32_t>;

const Tokenizer& fixture_tokenizer() {
  static const Tokenizer tokenizer = Tokenizer::load(tokenizer_fixture("tokenizer.json"));
  return tokenizer;
}

TEST(Tokenizer, EqualsHuggingFaceOnTheFixture) {
  const auto rows = fixture_strings();
  ASSERT_EQ(rows.size(), 452u);
  for (const auto& row : rows) {
    const std::string text = row["text"];
    const Ids want = row["ids"];
    ASSERT_EQ(fixture_tokenizer().encode(text), want) << text;
    EXPECT_EQ(fixture_tokenizer().decode(want), row["decoded"].get<std::string>());
    EXPECT_EQ(fixture_tokenizer().decode(want, /*skip_special=*/true), row["decoded_skip"].get<std::string>());
    std::vector<std::string> tokens;
    for (const int32_t id : want) {
      tokens.push_back(fixture_tokenizer().token_of(id));
      EXPECT_EQ(fixture_tokenizer().id_of(tokens.back()), id);
    }
    EXPECT_EQ(tokens, row["tokens"].get<std::vector<std::string>>());
  }
  EXPECT_EQ(fixture_tokenizer().vocab_size(), 1505);
}

TEST(Tokenizer, StreamsCompleteCharacters) {
  for (const auto& row : fixture_strings()) {
    if (row["text"].get<std::string>().find("\uFFFD") != std::string::npos) continue;  // what is looked for below
    for (const bool skip : {false, true}) {
      StreamDecoder stream(fixture_tokenizer(), skip);
      std::string text;
      for (const int32_t id : row["ids"].get<Ids>()) {
        const std::string part = stream.push(id);
        EXPECT_TRUE(part.empty() || (static_cast<unsigned char>(part[0]) & 0xC0) != 0x80)
            << "begins inside a character";
        EXPECT_EQ(part.find("\uFFFD"), std::string::npos) << "what may still become a character was given up";
        text += part;
      }
      EXPECT_EQ(text + stream.finish(), row[skip ? "decoded_skip" : "decoded"].get<std::string>());
    }
  }
}

TEST(Tokenizer, StreamsWhatIsNoUtf8AsDecodeDoes) {
  const Tokenizer bytes(byte_tokenizer());
  CounterRng rng(3, Stream::generate, 0);
  // Bytes around the borders of Unicode's table 3-7.
  const Ids some = {'a',  0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC1, 0xC2,
                    0xDF, 0xE0, 0xE1, 0xED, 0xEF, 0xF0, 0xF1, 0xF4, 0xF5, 0xFF};
  StreamDecoder stream(bytes);
  for (int round = 0; round < 5000; ++round) {
    Ids ids(1 + rng.below(8));
    for (int32_t& id : ids) id = some[rng.below(static_cast<uint32_t>(some.size()))];
    std::string text;
    for (const int32_t id : ids) text += stream.push(id);
    text += stream.finish();
    ASSERT_EQ(text, bytes.decode(ids));
  }
  // Python: b"\xe2\x82a\xff\xf0\x9f\x98".decode(errors="replace"); one for each maximal part.
  EXPECT_EQ(bytes.decode(Ids{0xE2, 0x82, 'a', 0xFF, 0xF0, 0x9F, 0x98}), "\uFFFDa\uFFFD\uFFFD");
  EXPECT_EQ(bytes.decode(Ids{0xED, 0xA0, 0x80}), "\uFFFD\uFFFD\uFFFD");
}

TEST(Tokenizer, BatchesAreTheSameWithAnyNumberOfThreads) {
  std::vector<std::string> texts;
  for (const auto& row : fixture_strings()) texts.push_back(row["text"]);
  const std::vector<std::string_view> views(texts.begin(), texts.end());
  const auto one = fixture_tokenizer().encode_batch(views, 1);
  EXPECT_EQ(fixture_tokenizer().encode_batch(views, 4), one);
  for (size_t i = 0; i < texts.size(); ++i) EXPECT_EQ(one[i], fixture_tokenizer().encode(texts[i]));
  EXPECT_TRUE(fixture_tokenizer().encode_batch({}, 4).empty());
  std::vector<std::string_view> bad = views;
  bad[200] = "abc\xFF";
  bad[300] = "\x80";
  for (const int threads : {1, 3}) {
    expect_error(ExitCode::data, {"text 200", "not UTF-8 at byte 3 of 4"},
                 [&] { fixture_tokenizer().encode_batch(bad, threads); });
  }
  // The first one, also where a later one is found wrong before or after it.
  std::string shorter, longer;  // to look at
  while (shorter.size() < (size_t{8} << 20)) shorter += "\u00e9\u4e2d";
  while (longer.size() < 4 * shorter.size()) longer += shorter;
  shorter += "\xFF";
  longer += "\xFF";
  for (const auto& [first, second] : {std::pair(shorter, longer), std::pair(longer, shorter)}) {
    const std::vector<std::string_view> both = {"a", first, second, "b"};
    expect_error(ExitCode::data, {"text 1: "}, [&] { fixture_tokenizer().encode_batch(both, 3); });
  }
  EXPECT_EQ(fixture_tokenizer().encode_batch(views, 2), one) << "after an error";
}

TEST(Tokenizer, RefusesWhatIsNoUtf8AndNoId) {
  for (const std::string bad :
       {"\xC0\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xE2\x82", "\x80", "\xF8\x88\x80\x80\x80"}) {
    expect_error(ExitCode::data, {"not UTF-8 at byte 9 of"}, [&] { fixture_tokenizer().encode("12345678 " + bad); });
  }
  for (const int32_t id : {-1, 1505, INT32_MAX}) {
    expect_error(ExitCode::data, {"no token with the id", std::to_string(id)}, [&] {
      fixture_tokenizer().decode(Ids{1, id});
    });
    EXPECT_FALSE(fixture_tokenizer().is_special(id));
  }
  TokenizerJson json = byte_tokenizer();
  json.added_tokens = {{.content = "far", .id = 300}};
  const Tokenizer gap(json);
  EXPECT_EQ(gap.vocab_size(), 301);
  expect_error(ExitCode::data, {"id 299"}, [&] { gap.token_of(299); });
  EXPECT_FALSE(gap.id_of("nowhere"));
  // A token of the vocabulary that is said to be special.
  json.added_tokens = {{.content = "a", .id = 'a', .special = true}};
  const Tokenizer marked(json);
  EXPECT_TRUE(marked.is_special('a') && !marked.is_special('b'));
  EXPECT_EQ(marked.decode(Ids{'a', 'b'}, /*skip_special=*/true), "b");
}

// Ids as the library (tokenizers 0.22.1) gave them for tests/fixtures/tokenizer with these tokens added.
TEST(Tokenizer, FindsAddedTokensAsHuggingFaceDoes) {
  TokenizerJson json = fixture_tokenizer().json();
  json.added_tokens.push_back({.content = "<l>", .id = 1505, .lstrip = true});
  json.added_tokens.push_back({.content = "<r>", .id = 1506, .rstrip = true});
  json.added_tokens.push_back({.content = "foo", .id = 1507, .single_word = true, .normalized = true});
  json.added_tokens.push_back({.content = "e\u0301\u0301x", .id = 1508, .normalized = true});
  json.added_tokens.push_back({.content = "<l><r>", .id = 1509});
  json.added_tokens.push_back({.content = "\u00e9\u00e8", .id = 1510});
  const Tokenizer tokenizer(json);
  const auto check = [&](const std::string& text, const Ids& want) { EXPECT_EQ(tokenizer.encode(text), want) << text; };
  check("a  <l>  b", {64, 1505, 220, 269});
  check("a <r> \n b", {64, 220, 1506, 65});
  check("<r> <l> x", {1506, 1505, 220, 87});
  check("foo", {1507});
  check("xfoo", {87, 69, 78, 78});
  check("foo bar foo1 foo-", {1507, 269, 285, 652, 78, 16, 220, 1507, 12});
  check("\u00e9\u0301x", {1508});
  check("e\u0301\u0301x", {1508});
  check("<l><r> z", {1509, 220, 89});
  check("\u00e9\u00e8 q", {1510, 220, 80});
  check("foo\u0301", {69, 78, 127, 111});
  check("\u24b6foo", {158, 240, 114, 69, 78, 78});
  check("foo\u200d", {69, 78, 78, 642, 235});
  // As its decoder does: the token's characters are taken for bytes.
  EXPECT_EQ(tokenizer.decode(Ids{1510, 220, 80}), "\uFFFD\uFFFD q");
  EXPECT_EQ(tokenizer.decode(Ids{64, 1505, 220}), "a<l> ");
}

TEST(Tokenizer, PutsItsTemplateAroundATextWhenAsked) {
  TokenizerJson json = byte_tokenizer();
  json.added_tokens = {{.content = "<s>", .id = 256, .special = true}, {.content = "</s>", .id = 257, .special = true}};
  json.has_template = true;
  json.single = {{.token = "<s>", .ids = {256}, .tokens = {"<s>"}},
                 {.sequence = true, .token = "", .ids = {}, .tokens = {}},
                 {.token = "end", .ids = {257, 256}, .tokens = {"</s>", "<s>"}}};
  const Tokenizer tokenizer(json);
  EXPECT_EQ(tokenizer.encode("ab", true), (Ids{256, 'a', 'b', 257, 256}));
  EXPECT_EQ(tokenizer.encode("", true), (Ids{256, 257, 256}));
  EXPECT_EQ(tokenizer.encode("ab"), (Ids{'a', 'b'}));
  EXPECT_EQ(tokenizer.decode(Ids{256, 'a', 257}, true), "a");
  EXPECT_EQ(fixture_tokenizer().encode("ab", true), fixture_tokenizer().encode("ab")) << "where there is none";
}

TEST(Tokenizer, PrefixSpaceAndSeveralSplits) {
  TokenizerJson json = byte_tokenizer({{" ", "a"}, {"1", "2"}, {"a", "b"}, {"a", "1"}, {"b", "1"}});
  json.pre_tokenizer[0].add_prefix_space = true;
  const Tokenizer whole(json);
  EXPECT_EQ(whole.encode("ab"), (Ids{256, 'b'}));
  EXPECT_EQ(whole.encode(" ab"), (Ids{256, 'b'}));
  EXPECT_EQ(whole.encode(""), Ids{});
  // Each piece gets its space, before GPT-2's pattern cuts.
  json.pre_tokenizer.insert(json.pre_tokenizer.begin(), 2, {.kind = PreTokenizerStep::Kind::split, .pattern = ""});
  json.pre_tokenizer[0].pattern = R"(\d{1,2})";
  json.pre_tokenizer[1].pattern = R"((?<=a)b+)";
  const Tokenizer cut(json);
  EXPECT_EQ(cut.encode("a12b1abb"), (Ids{256, ' ', 257, ' ', 'b', ' ', '1', 256, ' ', 'b', 'b'}));
}

TEST(Tokenizer, WordsThatAreTokensNeedNoMergesWhereTheyAreIgnored) {
  TokenizerJson json = byte_tokenizer({{"a", "b"}});
  json.vocabulary.push_back({"abc", 257});
  const Tokenizer merging(json);
  EXPECT_EQ(merging.encode("abc"), (Ids{256, 'c'}));
  json.ignore_merges = true;
  const Tokenizer ignoring(json);
  EXPECT_EQ(ignoring.encode("abc"), (Ids{257}));
  EXPECT_EQ(ignoring.encode("abcc"), (Ids{256, 'c', 'c'}));
  EXPECT_NE(merging.digest(), ignoring.digest());
}

TEST(Tokenizer, ItsDigestIsThatOfItsContent) {
  const test::TempDir dir;
  // The same without spaces and line ends.
  std::ifstream file(tokenizer_fixture("tokenizer.json"));
  write_text_atomic(dir / "dense.json", nlohmann::json::parse(file).dump());
  EXPECT_EQ(Tokenizer::load(dir / "dense.json").digest(), fixture_tokenizer().digest());
  write_text_atomic(dir / "ours.json", tokenizer_json_text(fixture_tokenizer().json()));
  EXPECT_EQ(Tokenizer::load(dir / "ours.json").digest(), fixture_tokenizer().digest());
  TokenizerJson json = fixture_tokenizer().json();
  std::swap(json.merges[3], json.merges[4]);
  EXPECT_NE(Tokenizer(json).digest(), fixture_tokenizer().digest());
}

TEST(Tokenizer, LongLinesAreReadInReasonableTime) {
  // 100 MB in one line, of words; each of its thousand copies gives the same ids.
  const std::string words = "It was the best of times, it was the worst of times; \u00e9t\u00e9 12345 na\u00efve. ";
  std::string line, part;
  while (part.size() < 100000) part += words;
  for (int i = 0; i < 1000; ++i) line += part;
  ASSERT_GE(line.size(), 100000000u);
  const Ids ids = fixture_tokenizer().encode(line), some = fixture_tokenizer().encode(part);
  ASSERT_EQ(ids.size() / 1000, some.size());
  EXPECT_TRUE(std::equal(some.begin(), some.end() - 2, ids.begin()));
  EXPECT_TRUE(std::equal(some.rbegin(), some.rend() - 1, ids.rbegin()));
  // One word of a million letters.
  std::string word;
  CounterRng rng(5, Stream::generate, 1);
  for (int i = 0; i < 1000000; ++i) word += "etaoin"[rng.below(6)];
  EXPECT_EQ(fixture_tokenizer().decode(fixture_tokenizer().encode(word)), word);
  // A million marks that NFC has to sort.
  std::string marks = "a";
  for (int i = 0; i < 1000000; ++i) append_utf8(rng.below(2) ? 0x0316 : 0x0301, marks);
  const std::string sorted = fixture_tokenizer().decode(fixture_tokenizer().encode(marks));
  EXPECT_EQ(sorted.substr(0, 4), "\u00e1\u0316");
  EXPECT_EQ(sorted.find("\u0301\u0316"), std::string::npos);
  EXPECT_EQ(sorted.substr(sorted.size() - 2), "\u0301");
}

TEST(Tokenizer, RefusesFilesThatItCannotUse) {
  const test::TempDir dir;
  expect_error(ExitCode::data, {"none.json"}, [&] { Tokenizer::load(dir / "none.json"); });
  write_text_atomic(dir / "bad.json", "{");
  expect_error(ExitCode::checkpoint, {"bad.json", "not valid JSON"},
               [&] { Tokenizer::load(dir / "bad.json", ExitCode::checkpoint); });
  TokenizerJson json = byte_tokenizer();
  json.pre_tokenizer.insert(json.pre_tokenizer.begin(), {.kind = PreTokenizerStep::Kind::split, .pattern = "(a"});
  write_text_atomic(dir / "pattern.json", tokenizer_json_text(json));
  expect_error(ExitCode::data, {"pattern.json", "'(a' is not a regular expression"},
               [&] { Tokenizer::load(dir / "pattern.json"); });
}

}  // namespace
}  // namespace hrm::data
