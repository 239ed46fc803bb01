#include "hrm/data/bpe_training.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "data/tokenizer/bpe.h"
#include "data/tokenizer/pre_tokenizer.h"
#include "data/tokenizer/tokenizer_cases.h"
#include "data/tokenizer/word_scanner.h"
#include "support/expect_error.h"

namespace hrm::data {
namespace {

using test::expect_error;
using Ids = std::vector<int32_t>;

// Counts everything anew before each merge.
TokenizerJson naive(const std::vector<std::string>& texts, const BpeTrainingOptions& options) {
  TokenizerJson result;
  PreTokenizerStep split;
  split.kind = PreTokenizerStep::Kind::split;
  split.pattern = options.words == "llama3" ? kLlama3Pattern : kQwenPattern;
  const PreTokenizer pre_tokenizer({split, {}}, "test", ExitCode::data);
  PreTokenizer::Worker worker(pre_tokenizer);
  std::vector<std::string> tokens;
  std::vector<int> bytes(256);
  for (int byte = 0; byte < 256; ++byte) bytes[byte] = byte;
  std::sort(bytes.begin(), bytes.end(), [](int a, int b) { return kByteLevelCharacters[a] < kByteLevelCharacters[b]; });
  for (const int byte : bytes) tokens.emplace_back(1, static_cast<char>(byte));
  const auto id_of = [&](const std::string& token) {
    return static_cast<int32_t>(std::find(tokens.begin(), tokens.end(), token) - tokens.begin());
  };
  std::vector<Ids> words;
  for (const std::string& text : texts) {
    worker.words(text, [&](std::string_view word, const char*) {
      Ids& ids = words.emplace_back();
      for (const char c : word) ids.push_back(id_of(std::string(1, c)));
    });
  }
  while (static_cast<int32_t>(tokens.size()) < options.vocab_size) {
    std::map<std::pair<int32_t, int32_t>, int64_t> counts;
    for (const Ids& word : words) {
      for (size_t i = 1; i < word.size(); ++i) ++counts[{word[i - 1], word[i]}];
    }
    for (const auto& done : result.merges) counts.erase(done);
    std::pair<int32_t, int32_t> best;
    int64_t most = 0;
    for (const auto& [pair, count] : counts) {  // in ascending order of the pair
      if (count > most) {
        best = pair;
        most = count;
      }
    }
    if (most < options.min_frequency) break;
    const std::string token = tokens[best.first] + tokens[best.second];
    const int32_t made = id_of(token);
    if (made == static_cast<int32_t>(tokens.size())) tokens.push_back(token);
    result.merges.push_back(best);
    for (Ids& word : words) {
      Ids merged;
      for (size_t i = 0; i < word.size(); ++i) {
        const bool here = i + 1 < word.size() && word[i] == best.first && word[i + 1] == best.second;
        merged.push_back(here ? made : word[i]);
        i += here;
      }
      word = merged;
    }
  }
  for (size_t id = 0; id < tokens.size(); ++id) {
    result.vocabulary.push_back({byte_level_text(tokens[id]), static_cast<int32_t>(id)});
  }
  return result;
}

std::string random_text(CounterRng& rng, uint32_t letters, uint32_t length) {
  std::string text;
  for (uint32_t i = 0; i < length; ++i) {
    const uint32_t what = rng.below(letters + 2);
    text += what < letters    ? std::string(1, static_cast<char>('a' + what))
            : what == letters ? " "
            : i % 7           ? "\u00e9"
                              : "\n";
  }
  return text;
}

TokenizerJson train(const std::vector<std::string>& texts, const BpeTrainingOptions& options) {
  const std::vector<std::string_view> views(texts.begin(), texts.end());
  return train_bpe(views, options);
}

TEST(BpeTraining, EqualsANaiveTrainer) {
  CounterRng rng(21, Stream::generate, 0);
  for (int round = 0; round < 60; ++round) {
    std::vector<std::string> texts;
    // Few letters make long runs of equal ones: overlaps, ties, and two ways to one token.
    for (int i = 0; i < 3; ++i) texts.push_back(random_text(rng, 1 + round % 6, 200));
    BpeTrainingOptions options;
    options.vocab_size = 256 + 40;
    options.min_frequency = 1 + round % 3;
    options.nfc = false;
    options.words = round % 2 ? "llama3" : "qwen3";
    const TokenizerJson got = train(texts, options), want = naive(texts, options);
    ASSERT_EQ(got.merges, want.merges) << "round " << round;
    ASSERT_EQ(got.vocabulary, want.vocabulary);
    ASSERT_GE(got.merges.size(), 5u);
  }
}

TEST(BpeTraining, WhatIsTrainedEncodesAndIsReadAgain) {
  CounterRng rng(22, Stream::generate, 0);
  for (const char* words : {"qwen3", "llama3", "gpt2"}) {
    const std::string text = random_text(rng, 12, 20000);
    BpeTrainingOptions options;
    options.vocab_size = 400;
    options.special_tokens = {"<|end|>", "<|start|>"};
    options.words = words;
    const TokenizerJson json = train({text}, options);
    EXPECT_EQ(json.vocabulary.size(), 398u);
    EXPECT_EQ(parse_tokenizer_json(tokenizer_json_text(json), "x"), json);
    const Tokenizer tokenizer(json);
    EXPECT_EQ(tokenizer.vocab_size(), 400);
    EXPECT_EQ(tokenizer.id_of("<|end|>"), 398);
    EXPECT_TRUE(tokenizer.is_special(399));
    const Ids ids = tokenizer.encode(text + "<|end|>");
    EXPECT_EQ(ids.back(), 398);
    EXPECT_LT(ids.size(), text.size() * 3 / 4);
    EXPECT_EQ(tokenizer.decode(ids, true), text);
    std::string all;
    for (int c = 1; c < 0x3000; ++c) append_utf8(static_cast<char32_t>(c), all);
    options.nfc = false;
    EXPECT_EQ(Tokenizer(train({text}, options)).decode(Tokenizer(train({text}, options)).encode(all)), all);
  }
}

TEST(BpeTraining, ThreadsAndPiecesChangeNothing) {
  CounterRng rng(23, Stream::generate, 0);
  std::string text;
  while (text.size() < (size_t{5} << 20) / 2)
    text += random_text(rng, 20, 100) + ".\nand " + random_text(rng, 3, 20) + "\n\n";
  BpeTrainingOptions options;
  options.vocab_size = 600;
  std::vector<std::string> stages;
  options.progress = [&](const BpeTrainingProgress& progress) {
    EXPECT_LE(progress.done, progress.total);
    if (stages.empty() || stages.back() != progress.stage) stages.push_back(progress.stage);
  };
  const TokenizerJson one = train({text}, options);
  EXPECT_EQ(stages, (std::vector<std::string>{"counting words", "merging"}));
  options.progress = nullptr;
  options.threads = 3;
  EXPECT_EQ(train({text}, options), one);
  // Cut by hand where the pieces are not: the words are the same wherever a line's end is one's own.
  options.words = "gpt2";
  const TokenizerJson whole = train({text}, options);
  std::vector<std::string> lines;
  for (size_t at = 0, end; at < text.size(); at = end) {
    end = std::min(text.find(".\nand ", at), text.size() - 2) + 2;
    lines.push_back(text.substr(at, end - at));
  }
  EXPECT_GT(lines.size(), 1000u);
  EXPECT_EQ(train(lines, options), whole);
  // Empty lines are no place to cut: the last line end of white space is a word of its own.
  std::string empty_lines;
  while (empty_lines.size() < (size_t{3} << 20)) empty_lines += "ab\n\n";
  empty_lines += "ab";  // at the end of a text they are one word
  options.min_frequency = 1;
  for (const VocabularyEntry& entry : train({empty_lines}, options).vocabulary) EXPECT_NE(entry.token, "\u010a\u010a");
}

TEST(BpeTraining, StopsAtTheFrequencyAndAtTheEnd) {
  BpeTrainingOptions options;
  options.vocab_size = 1000;
  options.min_frequency = 3;
  const auto tokens = [&](const std::string& text) {
    std::set<std::string> made;
    for (const VocabularyEntry& entry : train({text}, options).vocabulary) {
      if (entry.id >= 256) made.insert(entry.token);
    }
    return made;
  };
  EXPECT_EQ(tokens("ab ab ab cd cd"), (std::set<std::string>{"ab"}));
  options.min_frequency = 2;
  EXPECT_EQ(tokens("ab ab ab cd cd"), (std::set<std::string>{"ab", "\u0120ab", "cd", "\u0120cd"}));
  options.min_frequency = 1;
  EXPECT_EQ(tokens(""), (std::set<std::string>{}));
  EXPECT_EQ(tokens("a"), (std::set<std::string>{}));
  EXPECT_EQ(tokens("aaaaa"), (std::set<std::string>{"aa", "aaa", "aaaaa"}));
  options.special_tokens = {"ab"};
  EXPECT_EQ(tokens("abc abc abc").count("ab"), 0u) << "is not learned a second time";
}

TEST(BpeTraining, NormalizesWhatItCounts) {
  BpeTrainingOptions options;
  options.vocab_size = 257;
  const std::string text = "e\u0301 e\u0301 e\u0301";
  EXPECT_EQ(train({text}, options).vocabulary[256].token, byte_level_text("\u00e9"));
  options.nfc = false;
  EXPECT_EQ(train({text}, options).vocabulary[256].token, byte_level_text("\u0301"));
}

TEST(BpeTraining, RefusesWhatCannotBe) {
  const auto refused = [](ExitCode code, const std::string& part, auto change, const std::string& text = "a") {
    BpeTrainingOptions options;
    options.vocab_size = 300;
    change(options);
    expect_error(code, {part}, [&] { train({"fine", text}, options); });
  };
  refused(ExitCode::usage, "256 bytes", [](auto& o) { o.vocab_size = 255; });
  refused(ExitCode::usage, "need 257", [](auto& o) { o.vocab_size = 256, o.special_tokens = {"<e>"}; });
  refused(ExitCode::usage, "at most", [](auto& o) { o.vocab_size = 1 << 21; });
  refused(ExitCode::usage, "threads", [](auto& o) { o.threads = 0; });
  refused(ExitCode::usage, "the least is 1", [](auto& o) { o.min_frequency = 0; });
  refused(ExitCode::usage, "'<e>' was given twice", [](auto& o) { o.special_tokens = {"<e>", "<e>"}; });
  refused(ExitCode::usage, "is that of a byte", [](auto& o) { o.special_tokens = {"\u0120"}; });
  refused(ExitCode::usage, "is not 1 to", [](auto& o) { o.special_tokens = {""}; });
  refused(ExitCode::usage, "is not 1 to", [](auto& o) { o.special_tokens = {"\xFF!"}; });
  refused(ExitCode::usage, "not as 'bert'", [](auto& o) { o.words = "bert"; });
  refused(
      ExitCode::data, "text 1 is not UTF-8 at byte 2 of 3", [](auto&) {}, "ab\xFF");
}

// Merging through memory, in short words and in long ones, is merging pair by pair.
TEST(BpeEncoder, EqualsMergingPairByPair) {
  CounterRng rng(24, Stream::generate, 0);
  BpeTrainingOptions options;
  options.vocab_size = 700;
  options.min_frequency = 1;
  const TokenizerJson json = train({random_text(rng, 4, 30000)}, options);
  const BpeModel model(json);
  BpeEncoder encoder(model);
  for (int round = 0; round < 20000; ++round) {
    std::string word;
    const uint32_t most = round % 100 == 0 ? 3000 : round % 3 == 0 ? 120 : 20;
    for (uint32_t i = 1 + rng.below(most); i > 0; --i) word += static_cast<char>('a' + rng.below(1 + round % 5));
    Ids want;
    model.add_symbols(word, want);
    for (;;) {
      size_t best = 0;
      BpeModel::Merge merge;
      for (size_t i = 0; i + 1 < want.size(); ++i) {
        const BpeModel::Merge here = model.find(want[i], want[i + 1]);
        if (here.rank < merge.rank) merge = here, best = i;
      }
      if (merge.rank == BpeModel::kNoRank) break;
      want[best] = merge.id;
      want.erase(want.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    }
    for (int again = 0; again < 2; ++again) {
      Ids got = {7};
      encoder.encode(word, word.data() + word.size() + again, got);  // the string ends with a byte that may be read
      got.erase(got.begin());
      ASSERT_EQ(got, want) << word;
    }
  }
}

// More words than an encoder remembers.
TEST(BpeEncoder, ForgetsWithoutHarm) {
  const TokenizerJson json = byte_tokenizer({{"1", "0"}, {"10", "10"}});
  const BpeModel model(json);
  BpeEncoder encoder(model);
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 300000; ++i) {
      const std::string word = (i % 3 ? "" : "a word of twenty bytes ") + std::to_string(i);
      Ids got, want;
      encoder.encode(word, word.data() + word.size(), got);
      if (i % 1000 != 0 && i > 2000) continue;
      encoder.encode_afresh(word, want);
      ASSERT_EQ(got, want) << word;
    }
  }
}

}  // namespace
}  // namespace hrm::data
