#include "hrm/formats/tokenizer_json.h"

#include <functional>
#include <nlohmann/json.hpp>

#include "formats/format_testing.h"
#include "hrm/formats/byte_level.h"

namespace hrm {
namespace {

using Json = nlohmann::ordered_json;

std::string fixture_text() {
  return read_text(fixture("tokenizer/tokenizer.json"), ExitCode::data);
}

TokenizerJson parse_tokenizer(const std::string& text) {
  return parse_tokenizer_json(text, "t.json");
}

// 256 bytes, "ab", and whatever `change` makes of it.
Json small() {
  Json json = Json::parse(R"({"version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
    "normalizer": null, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true},
    "post_processor": null,
    "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
    "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "",
              "end_of_word_suffix": "", "fuse_unk": false, "merges": ["a b"]}})");
  Json vocabulary = Json::object();
  for (int byte = 0; byte < 256; ++byte) vocabulary[byte_level_text(std::string(1, static_cast<char>(byte)))] = byte;
  vocabulary["ab"] = 256;
  json["model"]["vocab"] = vocabulary;
  return json;
}

Json added(const std::string& content, int id) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", true}};
}

std::string changed(const std::function<void(Json&)>& change) {
  Json json = small();
  change(json);
  return json.dump();
}

void tokenizer_refused(const std::function<void(Json&)>& change, const std::vector<std::string>& parts) {
  SCOPED_TRACE(parts[0]);
  expect_error([&] { parse_tokenizer(changed(change)); }, ExitCode::data, parts);
}

TEST(ByteLevel, IsGpt2sAlphabet) {
  EXPECT_EQ(byte_level_text(" the\n\u00e9"), "\u0120the\u010a\u00c3\u00a9");
  EXPECT_EQ(byte_level_text(std::string("\0\x7F\xAD\xFF", 4)), "\u0100\u0121\u0143\u00ff");
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  EXPECT_EQ(byte_level_bytes(byte_level_text(all)), all);
  for (const std::string bad : {" ", "a b", "\u00ad", "\u0144", "\u4e2d", "\xC4", "\xC4z", "\x80", "\xE2\x82\xAC"}) {
    EXPECT_EQ(byte_level_bytes(bad), std::nullopt) << bad;
  }
}

TEST(TokenizerJson, ReadsTheFixture) {
  const TokenizerJson json = parse_tokenizer(fixture_text());
  EXPECT_EQ(json.vocabulary.size(), 1500u);
  EXPECT_EQ(json.vocabulary[220].token, "\u0120");
  EXPECT_EQ(json.merges.size(), 1244u);
  EXPECT_EQ(json.merges[0], (std::pair<int32_t, int32_t>{220, 83}));
  ASSERT_EQ(json.added_tokens.size(), 5u);
  EXPECT_EQ(json.added_tokens[4].content, "</think>");
  EXPECT_FALSE(json.added_tokens[4].special);
  EXPECT_TRUE(json.added_tokens[0].special);
  EXPECT_EQ(json.normalizers, std::vector{NormalizerStep()});
  ASSERT_EQ(json.pre_tokenizer.size(), 2u);
  EXPECT_EQ(json.pre_tokenizer[0].pattern.substr(0, 8), "(?i:'s|'");
  EXPECT_FALSE(json.pre_tokenizer[1].use_regex);
  EXPECT_FALSE(json.has_template);
  EXPECT_EQ(parse_tokenizer(tokenizer_json_text(json)), json);
}

TEST(TokenizerJson, ReadsWhatOtherModelsUse) {
  const TokenizerJson json = parse_tokenizer(changed([](Json& json) {
    json["model"].erase("type");
    json["model"]["ignore_merges"] = true;
    json["model"]["merges"] = Json::array({Json::array({"a", "b"})});
    json["added_tokens"] = {added("<s>", 257), added("ab", 256)};
    json["normalizer"] = {{"type", "Sequence"}, {"normalizers", Json::array({{{"type", "NFC"}}})}};
    json["post_processor"] = Json::parse(R"({"type": "Sequence", "processors": [
      {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true},
      {"type": "TemplateProcessing",
       "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
       "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
       "special_tokens": {"<s>": {"id": "<s>", "ids": [257], "tokens": ["<s>"]}}}]})");
  }));
  EXPECT_TRUE(json.ignore_merges && json.has_template);
  EXPECT_EQ(json.normalizers, std::vector{NormalizerStep()});
  EXPECT_EQ(json.merges[0], (std::pair<int32_t, int32_t>{'a', 'b'}));
  EXPECT_TRUE(json.pre_tokenizer[0].use_regex) << "which is what an absent one means";
  ASSERT_EQ(json.single.size(), 2u);
  EXPECT_EQ(json.single[0].ids, std::vector<int32_t>{257});
  EXPECT_TRUE(json.single[1].sequence);
  EXPECT_TRUE(json.pair[1].second);
  EXPECT_EQ(json.pair[1].type_id, 1);
  EXPECT_EQ(parse_tokenizer(tokenizer_json_text(json)), json);
  EXPECT_EQ(tokenizer_json_text(parse_tokenizer(tokenizer_json_text(json))), tokenizer_json_text(json));
}

TEST(TokenizerJson, ReadsWhetherOffsetsAreTrimmed) {
  const auto of = [](const char* post_processor) {
    const TokenizerJson json =
        parse_tokenizer(changed([&](Json& json) { json["post_processor"] = Json::parse(post_processor); }));
    EXPECT_EQ(parse_tokenizer(tokenizer_json_text(json)), json);
    return std::pair(json.trims_offsets, json.first_space_counts);
  };
  EXPECT_EQ(of("null"), std::pair(false, false));
  EXPECT_EQ(of(R"({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true})"),
            std::pair(false, false));
  EXPECT_EQ(of(R"({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true})"),
            std::pair(true, false));
  EXPECT_EQ(of(R"({"type": "Sequence", "processors": [
                  {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
                  {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}}],
                   "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                   "special_tokens": {}}]})"),
            std::pair(true, true));
}

TEST(TokenizerJson, RefusesByName) {
  tokenizer_refused([](Json& j) { j["model"]["type"] = "Unigram"; }, {"t.json: model:", "'Unigram'"});
  tokenizer_refused([](Json& j) { j["model"]["dropout"] = 0.1; }, {"model.dropout: is set"});
  tokenizer_refused([](Json& j) { j["model"]["end_of_word_suffix"] = "</w>"; }, {"end_of_word_suffix"});
  tokenizer_refused([](Json& j) { j["model"]["extra"] = 1; }, {"'extra' is not known"});
  tokenizer_refused([](Json& j) { j["model"].erase("vocab"); }, {"'vocab' is missing"});
  tokenizer_refused([](Json& j) { j["version"] = "2.0"; }, {"version: is '2.0'"});
  tokenizer_refused([](Json& j) { j["truncation"] = 64; }, {"truncation: is neither null nor an object"});
  tokenizer_refused([](Json& j) { j["normalizer"] = {{"type", "Precompiled"}}; }, {"normalizer:", "'Precompiled'"});
  tokenizer_refused([](Json& j) { j["normalizer"] = {{"type", "Prepend"}}; }, {"normalizer:", "'prepend' is missing"});
  tokenizer_refused([](Json& j) { j["pre_tokenizer"] = {{"type", "UnicodeScripts"}}; }, {"'UnicodeScripts'"});
  const auto steps = [](const Json& first) {
    return [=](Json& j) {
      j["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {first, j["pre_tokenizer"]}}};
    };
  };
  tokenizer_refused(steps({{"type", "ByteLevel"}, {"add_prefix_space", false}}), {"has 2 ByteLevel steps"});
  const Json metaspace = {{"type", "Metaspace"}, {"replacement", "\u2581"}};
  tokenizer_refused(steps(metaspace), {"a ByteLevel and a Metaspace"});
  const auto metaspace_with = [&](const char* key, const Json& value) {
    return [=](Json& j) {
      j["pre_tokenizer"] = metaspace;
      j["pre_tokenizer"][key] = value;
    };
  };
  tokenizer_refused(metaspace_with("replacement", "ab"), {"pre_tokenizer.replacement: 'ab' is not one character"});
  tokenizer_refused(metaspace_with("prepend_scheme", "last"), {"prepend_scheme: 'last'"});
  tokenizer_refused(metaspace_with("split", 1), {"split: is neither true nor false"});
  tokenizer_refused(
      [&](Json& j) {
        metaspace_with("add_prefix_space", false)(j);
        j["pre_tokenizer"]["prepend_scheme"] = "first";
      },
      {"'add_prefix_space' is false, but 'prepend_scheme' is 'first'"});
  tokenizer_refused(steps({{"type", "Punctuation"}, {"behavior", "Kept"}}), {"behavior: 'Kept'"});
  const auto decoders = [](const Json& list) {
    return [=](Json& j) { j["decoder"] = {{"type", "Sequence"}, {"decoders", list}}; };
  };
  const Json fuse = {{"type", "Fuse"}};
  tokenizer_refused(decoders(Json::array({fuse})), {"the pre_tokenizer has a ByteLevel, but the decoder has none"});
  tokenizer_refused(decoders(Json::array()), {"decoder: has no steps"});
  tokenizer_refused(decoders({fuse, {{"type", "ByteFallback"}}}), {"decoders[1]", "'ByteFallback' stands behind"});
  tokenizer_refused(decoders(Json::array({{{"type", "Strip"}, {"content", " "}, {"start", 0}, {"stop", 1}}})),
                    {"stop: is not 0"});
  tokenizer_refused(decoders(Json::array({{{"type", "Replace"}, {"pattern", {{"Regex", "a"}}}, {"content", ""}}})),
                    {"is a Regex; in a decoder"});
  const auto split = [](const Json& pattern, const char* behavior, bool invert) {
    return [=](Json& j) {
      const Json step = {{"type", "Split"}, {"pattern", pattern}, {"behavior", behavior}, {"invert", invert}};
      j["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {step, j["pre_tokenizer"]}}};
    };
  };
  parse_tokenizer(changed(split({{"Regex", "a"}}, "Isolated", false)));
  parse_tokenizer(changed(split({{"String", "a"}}, "Removed", true)));
  tokenizer_refused(split({{"Regex", "a"}}, "Joined", false), {"behavior: 'Joined'"});
  tokenizer_refused(split({{"Regex", "a"}, {"String", "a"}}, "Isolated", false), {"neither a Regex nor a String"});
  tokenizer_refused(split({{"Bytes", "a"}}, "Isolated", false), {"'Bytes' is not known"});
  tokenizer_refused(split({{"Regex", ""}}, "Isolated", false), {"is empty"});
  tokenizer_refused(split({{"Regex", std::string(16385, 'a')}}, "Isolated", false), {"16385 bytes"});
  tokenizer_refused([](Json& j) { j["decoder"] = nullptr; }, {"decoder: is null"});
  tokenizer_refused([](Json& j) { j["decoder"] = {{"type", "WordPiece"}}; }, {"'WordPiece'"});
  tokenizer_refused([](Json& j) { j["post_processor"] = {{"type", "BertProcessing"}}; }, {"'BertProcessing'"});
  tokenizer_refused([](Json& j) { j["\x1b[31m"] = 1; }, {"'\\x1B[31m' is not known"});
}

// tokenizers 0.22.2 numbers these two 257 and 258, whatever the file says.
TEST(TokenizerJson, RefusesIdsThatTheLibraryWouldChange) {
  const auto with = [](int first, int second) {
    return [=](Json& j) { j["added_tokens"] = {added("x!", first), added("ab", 256), added("y!", second)}; };
  };
  parse_tokenizer(changed(with(257, 258)));
  tokenizer_refused(with(1257, 1258), {"added_tokens[0]: 'x!' has the id 1257, but the next free id is 257"});
  tokenizer_refused(with(257, 259), {"added_tokens[2]: 'y!' has the id 259, but the next free id is 258"});
  tokenizer_refused(with(258, 257), {"'x!' has the id 258, but the next free id is 257"});
  // A gap inside of the vocabulary moves nothing: 257 tokens, and the next one is 257.
  const auto gap = [&](Json& j) {
    j["model"]["vocab"]["ab"] = 300;
    with(257, 301)(j);
    j["added_tokens"][1]["id"] = 300;
  };
  const TokenizerJson json = parse_tokenizer(changed(gap));
  EXPECT_EQ(json.added_tokens[2].id, 301);
  tokenizer_refused([&](Json& j) { gap(j), j["added_tokens"][2]["id"] = 258; },
                    {"'y!' has the id 258, but the next free id is 301"});
}

// What never comes into use and what a former call left there is as if it were not there: the same tokenizer, with the
// same digest.
TEST(TokenizerJson, PassesOverWhatHasNoEffect) {
  const TokenizerJson plain = parse_tokenizer(small().dump());
  const auto same = [&](const std::function<void(Json&)>& change) {
    EXPECT_EQ(parse_tokenizer(changed(change)), plain);
  };
  same([](Json& j) { j["model"]["unk_token"] = "<unk>"; });
  same([](Json& j) { j["model"]["unk_token"] = "a", j["model"]["fuse_unk"] = true; });
  same([](Json& j) { j["model"]["byte_fallback"] = true, j["model"]["dropout"] = 0.0; });
  const Json truncation = {{"direction", "Right"}, {"max_length", 64}, {"strategy", "LongestFirst"}, {"stride", 0}};
  testing::internal::CaptureStderr();
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(parse_tokenizer_json(changed([&](Json& j) {
                                     j["truncation"] = truncation;
                                     j["padding"] = {{"strategy", "BatchLongest"}};
                                   }),
                                   "left.json"),
              plain);
  }
  const std::string told = testing::internal::GetCapturedStderr();
  const size_t at = told.find("left.json: 'truncation' and 'padding' of a former call are skipped");
  EXPECT_NE(at, std::string::npos) << told;
  EXPECT_EQ(told.find("left.json", at + 1), std::string::npos) << "told twice: " << told;
}

TEST(TokenizerJson, SaysWhatBecomesOfUnknownSymbols) {
  const auto without_space = [](Json& j) { j["model"]["vocab"].erase("\u0120"); };
  const TokenizerJson left_out = parse_tokenizer(changed(without_space));
  EXPECT_EQ(left_out.unk_token, "");
  const TokenizerJson unknown = parse_tokenizer(changed([&](Json& j) {
    without_space(j);
    j["model"]["unk_token"] = "a", j["model"]["fuse_unk"] = true;
  }));
  EXPECT_EQ(unknown.unk_token, "a");
  EXPECT_TRUE(unknown.fuse_unk);
  EXPECT_EQ(parse_tokenizer(tokenizer_json_text(unknown)), unknown);
  tokenizer_refused([&](Json& j) { without_space(j), j["model"]["unk_token"] = "<unk>"; },
                    {"model: the 'unk_token' '<unk>' is not in the vocabulary, but symbols can be unknown"});
}

TEST(TokenizerJson, RefusesWhatContradictsItself) {
  tokenizer_refused([](Json& j) { j["model"]["merges"] = {"a zz"}; },
                    {"merges[0]", "the token 'zz' is not in the vocabulary"});
  tokenizer_refused([](Json& j) { j["model"]["merges"] = {"a b", "b c"}; }, {"merges[1]", "makes 'bc', which is not"});
  tokenizer_refused(
      [](Json& j) {
        j["model"]["merges"] = {"a b", "a b"};
      },
      {"merges[1]", "'a' and 'b' are merged twice"});
  tokenizer_refused([](Json& j) { j["model"]["merges"] = {"ab"}; }, {"is no two tokens"});
  tokenizer_refused([](Json& j) { j["model"]["merges"] = {"a b c"}; }, {"is no two tokens"});
  tokenizer_refused([](Json& j) { j["model"]["merges"] = {Json::array({"a"})}; }, {"merges[0]", "neither"});
  tokenizer_refused([](Json& j) { j["model"]["merges"] = {7}; }, {"neither"});
  tokenizer_refused([](Json& j) { j["model"]["vocab"]["ab"] = 255; }, {"have the same id 255"});
  for (const Json& id : {Json(-1), Json(1.5), Json("7"), Json(true), Json(1 << 21), Json(UINT64_MAX)}) {
    tokenizer_refused([&](Json& j) { j["model"]["vocab"]["ab"] = id; }, {"the id of 'ab'"});
    tokenizer_refused([&](Json& j) { j["added_tokens"] = {added("x!", 7)}, j["added_tokens"][0]["id"] = id; },
                      {"id: is not a whole"});
  }
  tokenizer_refused([](Json& j) { j["model"]["vocab"][""] = 400; }, {"has 0 bytes"});
  tokenizer_refused([](Json& j) { j["model"]["vocab"][std::string(4097, 'a')] = 400; }, {"has 4097 bytes"});
  tokenizer_refused([](Json& j) { j["added_tokens"] = {added("x!", 7)}; }, {"'x!' has the id 7 of '\u0107'"});
  tokenizer_refused(
      [](Json& j) {
        j["added_tokens"] = {added("x!", 257), added("y!", 257)};
      },
      {"'y!' has the id 257 of 'x!'"});
  tokenizer_refused([](Json& j) { j["added_tokens"] = {added("x!", 257), added("x!", 258)}; }, {"'x!' occurs twice"});
  tokenizer_refused([](Json& j) { j["added_tokens"] = {added("ab", 400)}; },
                    {"'ab' has the id 400, but in the vocabulary 256"});
  tokenizer_refused([](Json& j) { j["added_tokens"] = {added("", 400)}; }, {"its content is empty"});
  tokenizer_refused([](Json& j) { j["added_tokens"] = {added("x", 400)}, j["added_tokens"][0]["special"] = 1; },
                    {"neither true nor"});
  const auto with = [](const std::string& single, const std::string& special) {
    return [=](Json& j) {
      j["added_tokens"] = {added("<s>", 257)};
      j["post_processor"] = {{"type", "TemplateProcessing"},
                             {"single", Json::parse(single)},
                             {"pair", Json::array()},
                             {"special_tokens", Json::parse(special)}};
    };
  };
  const std::string text = R"({"Sequence": {"id": "A", "type_id": 0}})",
                    bos = R"({"SpecialToken": {"id": "<s>", "type_id": 0}})";
  const std::string good = R"({"<s>": {"id": "<s>", "ids": [257], "tokens": ["<s>"]}})";
  parse_tokenizer(changed(with("[" + bos + "," + text + "]", good)));
  tokenizer_refused(with("[" + bos + "]", good), {"'A' not exactly once"});
  tokenizer_refused(with("[" + text + "," + text + "]", good), {"'A' not exactly once"});
  tokenizer_refused(with("[" + bos + "," + text + "]", "{}"), {"none of 'special_tokens'"});
  tokenizer_refused(with("[" + bos + "," + text + "]", R"({"<s>": {"id": "<s>", "ids": [301], "tokens": ["<s>"]}})"),
                    {"does not have the id 301"});
  tokenizer_refused(with("[" + bos + "," + text + "]", R"({"<s>": {"id": "<s>", "ids": [], "tokens": []}})"),
                    {"at least one"});
  tokenizer_refused(with("[" + bos + "," + text + "]", R"({"<s>": {"id": "x", "ids": [257], "tokens": ["<s>"]}})"),
                    {"another 'id'"});
}

TEST(TokenizerJson, KeepsItsLimits) {
  // A line of 100 MB is refused before it is parsed.
  expect_error([] { parse_tokenizer(std::string(100'000'000, '[')); }, ExitCode::data,
               {"is too long; at most 64.0 MiB"});
  expect_error([] { parse_tokenizer(std::string(1000, '[')); }, ExitCode::data, {"nests more than 16 deep"});
  tokenizer_refused(
      [](Json& j) {
        j["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", Json(Json::array_t(17, j["pre_tokenizer"]))}};
      },
      {"holds 17 entries; at most 16"});
  tokenizer_refused(
      [](Json& j) {
        Json nested = j["pre_tokenizer"];
        for (int i = 0; i < 5; ++i) nested = {{"type", "Sequence"}, {"pretokenizers", Json::array({nested})}};
        j["pre_tokenizer"] = nested;
      },
      {"'Sequence' is not known"});
  // As many tokens and merges as Qwen has.
  Json json = small();
  std::string text = json.dump();
  std::string tokens, pairs;
  for (int i = 0; i < 150000; ++i) {
    const std::string left = "0", right = std::to_string(100000 + i);
    tokens += cat(",\"", right, "\":", 1000 + 2 * i, ",\"", left, right, "\":", 1001 + 2 * i);
    pairs += cat(",[\"", left, "\",\"", right, "\"]");
  }
  text.replace(text.find("\"ab\":256"), 8, "\"ab\":256" + tokens);
  text.replace(text.find("\"a b\""), 5, "\"a b\"" + pairs);
  EXPECT_EQ(parse_tokenizer(text).merges.size(), 150001u);
}

TEST(TokenizerJson, DamageIsFound) {
  const std::string good = fixture_text();
  const auto read = [](std::span<const std::byte> bytes) { parse_tokenizer_json(as_text(bytes), "t.json"); };
  expect_truncations_fail(good.substr(0, good.rfind('}') + 1), ExitCode::data, read);
  const std::string dense = small().dump();
  EXPECT_GT(expect_flips_are_safe(dense, 1000, ExitCode::data, read), 500);
}

TEST(TokenizerJson, TheWriterRefusesWhatItCannotWrite) {
  TokenizerJson json = parse_tokenizer(fixture_text());
  json.merges.emplace_back(3, 999999);
  expect_error([&] { tokenizer_json_text(json); }, ExitCode::unexpected, {"999999"});
  json.merges.pop_back();
  json.added_tokens[0].content = "\xFF";
  expect_error([&] { tokenizer_json_text(json); }, ExitCode::unexpected, {"not UTF-8"});
}

}  // namespace
}  // namespace hrm
