// Forms of tokenizer.json give what the tokenizers library gave for them (make_tokenizer_forms.py).

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "data/tokenizer/tokenizer_cases.h"
#include "hrm/base/file.h"
#include "hrm/formats/zip.h"
#include "support/expect_error.h"

namespace hrm::data {
namespace {

using nlohmann::ordered_json;

ordered_json read_fixture(const std::string& name) {
  return ordered_json::parse(
      read_text(std::filesystem::path(test::source_dir()) / "tests/fixtures" / name, ExitCode::data));
}

// A vocabulary without some tokens, the others numbered anew.
void take_away(ordered_json& whole, const std::set<std::string>& gone) {
  ordered_json& model = whole["model"];
  ordered_json vocab = ordered_json::object(), merges = ordered_json::array();
  int32_t next = 0;
  for (const auto& item : model["vocab"].items()) {
    if (!gone.contains(item.key())) vocab.push_back({item.key(), next++});
  }
  for (const auto& merge : model["merges"]) {
    const std::string left = merge[0], right = merge[1];
    if (!gone.contains(left) && !gone.contains(right) && !gone.contains(left + right)) merges.push_back(merge);
  }
  for (auto& token : whole["added_tokens"]) {
    const std::string content = token["content"];
    token["id"] = vocab.contains(content) ? vocab[content].get<int32_t>() : next++;
  }
  model["vocab"] = vocab;
  model["merges"] = merges;
}

std::string form_text(const ordered_json& form) {
  const std::string base =
      form["base"] == "bytes" ? "tokenizer/tokenizer.json" : "tokenizer_forms/characters_base.json";
  ordered_json whole = read_fixture(base);
  if (form.contains("gone")) take_away(whole, form["gone"].get<std::set<std::string>>());
  if (form.contains("model")) whole["model"].update(form["model"]);
  for (const char* member : {"normalizer", "pre_tokenizer", "decoder", "post_processor"}) {
    if (form.contains(member)) whole[member] = form[member];
  }
  return whole.dump();
}

std::string joined(const std::vector<int32_t>& ids) {
  std::string text;
  for (const int32_t id : ids) text += (text.empty() ? "" : " ") + std::to_string(id);
  return text;
}

class TokenizerForms : public testing::TestWithParam<const char*> {};

TEST_P(TokenizerForms, EqualTheLibrary) {
  const ordered_json group = read_fixture(std::string("tokenizer_forms/") + GetParam() + ".json");
  const auto rows = fixture_strings();
  ASSERT_EQ(rows.size(), 452u);
  ASSERT_GE(group["forms"].size(), 17u);
  for (const auto& item : group["forms"].items()) {
    SCOPED_TRACE(item.key());
    const TokenizerJson json = parse_tokenizer_json(form_text(item.value()["form"]), item.key());
    ASSERT_EQ(parse_tokenizer_json(tokenizer_json_text(json), "again"), json);
    const Tokenizer tokenizer(json, item.key());
    const std::string want = item.value()["crc"];
    ASSERT_EQ(want.size(), 4 * rows.size());
    int wrong = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      const std::string text = rows[i]["text"];
      const std::vector<int32_t> ids = tokenizer.encode(text);
      const std::string decoded = tokenizer.decode(ids), skipped = tokenizer.decode(ids, /*skip_special=*/true);
      const std::string all = joined(ids) + "\n" + decoded + "\n" + skipped;
      char crc[8];
      std::snprintf(crc, sizeof crc, "%04x", crc32(as_bytes(all)) & 0xFFFFu);
      if (want.substr(4 * i, 4) != crc && ++wrong <= 3) {
        ADD_FAILURE() << "string " << i << " '" << text << "':\n" << all;
      }
      for (const bool skip : {false, true}) {
        StreamDecoder stream(tokenizer, skip);
        std::string streamed;
        for (const int32_t id : ids) streamed += stream.push(id);
        ASSERT_EQ(streamed + stream.finish(), skip ? skipped : decoded);
      }
    }
    EXPECT_EQ(wrong, 0);
  }
}

Tokenizer characters_base() {
  return Tokenizer(parse_tokenizer_json(form_text({{"base", "characters"}}), "characters"));
}

TEST(CharacterTokenizer, CountsTheBytesOfItsTokens) {
  const Tokenizer tokenizer = characters_base();
  const std::string text = "the end \u4e2d\u00e9.";
  std::string bytes;
  for (const int32_t id : tokenizer.encode(text)) bytes += tokenizer.bytes_of(id);
  EXPECT_EQ(bytes, " " + text) << "with the space that the normalizer put in front";
}

TEST(CharacterTokenizer, StreamsABytesRunWhenItIsKnown) {
  const Tokenizer tokenizer = characters_base();
  const auto byte = [&](int value) { return *tokenizer.id_of(byte_fallback_token(static_cast<unsigned char>(value))); };
  const int32_t end = *tokenizer.id_of("e");
  StreamDecoder stream(tokenizer);
  EXPECT_EQ(stream.push(end), "e");
  EXPECT_EQ(stream.push(byte(0xC3)), "");
  EXPECT_EQ(stream.push(byte(0xA9)), "") << "a byte behind it may still spoil the character";
  EXPECT_EQ(stream.push(end), "\u00e9e");
  for (const int value : {0xC3, 0xA9, 0xFF}) EXPECT_EQ(stream.push(byte(value)), "");
  EXPECT_EQ(stream.finish(), "\uFFFD\uFFFD\uFFFD") << "one for each byte of the run, as in the library";
  EXPECT_EQ(tokenizer.decode(std::vector{byte(0xC3), byte(0xA9), byte(0xFF), end}), "\uFFFD\uFFFD\uFFFDe");
  // The first space of a text is the normalizer's own; a new text has one again.
  const int32_t space = *tokenizer.id_of("\u2581");
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(stream.push(space) + stream.push(space) + stream.finish(), " ");
  }
}

TEST(CharacterTokenizer, LongWordsAreMergedLikeShortOnes) {
  const Tokenizer tokenizer = characters_base();
  // Without a pre-tokenizer a text is one word.
  std::string text;
  for (int i = 0; i < 20000; ++i) text += "the end of a long line, ";
  const std::vector<int32_t> ids = tokenizer.encode(text), some = tokenizer.encode("the end of a long line, ");
  EXPECT_EQ(tokenizer.decode(ids), text);
  EXPECT_TRUE(std::equal(some.begin(), some.end() - 2, ids.begin()));
}

TEST(Tokenizer, StepsThatDoubleATextAgainAndAgainEnd) {
  TokenizerJson json = byte_tokenizer();
  json.normalizers.assign(
      16, {.kind = NormalizerStep::Kind::replace, .pattern = "a", .literal = true, .content = std::string(64, 'a')});
  const Tokenizer growing(json);
  test::expect_error(ExitCode::data, {"the tokenizer's normalizer makes", "of a text of 3 B"},
                     [&] { growing.encode("bab"); });
  EXPECT_EQ(growing.encode("bb").size(), 2u);
  json = byte_tokenizer();
  json.decoder.assign(
      16, {.kind = DecoderStep::Kind::replace, .pattern = "a", .content = std::string(64, 'a'), .count = 0});
  test::expect_error(ExitCode::data, {"the tokenizer's decoder makes more than"}, [&] { Tokenizer{json}; });
}

INSTANTIATE_TEST_SUITE_P(Groups, TokenizerForms, testing::Values("pre_tokenizers", "normalizers", "characters"));

}  // namespace
}  // namespace hrm::data
