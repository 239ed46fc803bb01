// hrm_train data tokenizer, hrm_train data tokenize.
#include <gtest/gtest.h>

#include <sstream>

#include "data/tokenizer/tokenizer_cases.h"
#include "hrm/base/file.h"
#include "hrm/commands/data.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace hrm::data {
namespace {

using test::expect_error;
using test::TempDir;

std::string tokenize(TokenizeCommand command, const std::string& input) {
  if (command.tokenizer.empty()) command.tokenizer = tokenizer_fixture("tokenizer.json");
  std::istringstream in(input);
  std::ostringstream out;
  run_data_tokenize(command, in, out);
  return out.str();
}

TEST(DataTokenize, LinesToIdsAndBack) {
  EXPECT_EQ(tokenize({}, "it\n\na  b   c    d\nlast <|im_end|>"),
            "276\n\n64 220 269 953 279 953 220 278\n75 459 220 1502\n");
  EXPECT_EQ(tokenize({.tokenizer = "", .decode = true}, "64 220  269\n\n1502 64\n"), "a  b\n\n<|im_end|>a\n");
  EXPECT_EQ(tokenize({.tokenizer = "", .decode = true, .skip_special = true}, "1502 64 1503"), "a<think>\n");
  EXPECT_EQ(tokenize({}, ""), "");
  // More than is read at a time; any number of threads.
  std::string text, ids;
  for (int i = 0; i < 30000; ++i)
    text += cat("line ", i, " of text, which is long enough for three times a MiB when repeated; na\u00efve \u4e2d\n");
  ids = tokenize({}, text);
  EXPECT_EQ(tokenize({.tokenizer = "", .threads = 3}, text), ids);
  EXPECT_EQ(tokenize({.tokenizer = "", .decode = true}, ids), text);
}

TEST(DataTokenize, ByteOrderMarksAreNoText) {
  const std::string mark = "\xEF\xBB\xBF";
  EXPECT_EQ(tokenize({}, mark + "it\nit"), "276\n276\n");
  EXPECT_NE(tokenize({}, "it\n" + mark + "it"), "276\n276\n") << "inside of the text it is a character";
  const TempDir dir;
  write_text_atomic(dir / "plain.txt", "it is it is it is");
  write_text_atomic(dir / "marked.txt", mark + "it is it is it is");
  std::vector<std::string> digests;
  for (const char* name : {"plain.txt", "marked.txt"}) {
    TrainTokenizerCommand command;
    command.texts = {dir / name};
    command.vocab_size = 262;
    command.out = dir / "tokenizer.json";
    std::ostringstream out;
    run_data_tokenizer(command, out);
    digests.push_back(Tokenizer::load(command.out).digest());
  }
  EXPECT_EQ(digests[0], digests[1]);
}

TEST(DataTokenize, NamesTheLine) {
  expect_error(ExitCode::data, {"standard input, line 3: is not UTF-8 at byte 1 of 2"},
               [] { tokenize({}, "a\nb\nc\xFF\n"); });
  for (const std::string bad : {"x", "-1", "1.5", "99999999999", "\x1b"}) {
    expect_error(ExitCode::data, {"standard input, line 2: '", "is not an id"},
                 [&] { tokenize({.tokenizer = "", .decode = true}, "1\n2 " + bad); });
  }
  expect_error(ExitCode::data, {"line 1: the tokenizer has no token with the id 1505"},
               [] { tokenize({.tokenizer = "", .decode = true}, "1505"); });
  expect_error(ExitCode::data, {"nowhere.json"}, [] { tokenize({.tokenizer = "nowhere.json"}, "a"); });
}

TEST(DataTokenizer, TrainsFromFiles) {
  const TempDir dir;
  std::string text;
  for (int i = 0; i < 200; ++i) text += cat("the cat sat on the mat ", i % 10, "\n");
  write_text_atomic(dir / "a.txt", text);
  write_text_atomic(dir / "b.txt", "dog dog dog dog\n");
  TrainTokenizerCommand command;
  command.texts = {dir / "a.txt", dir / "b.txt"};
  command.vocab_size = 270;
  command.special = {"<|end|>"};
  command.out = dir / "tokenizer.json";
  std::ostringstream out;
  run_data_tokenizer(command, out);
  const Tokenizer tokenizer = Tokenizer::load(command.out);
  EXPECT_EQ(tokenizer.vocab_size(), 270);
  EXPECT_EQ(tokenizer.id_of("<|end|>"), 269);
  EXPECT_TRUE(tokenizer.id_of("\u0120the"));
  EXPECT_NE(out.str().find("270 tokens (256 bytes, 13 learned, 1 special), digest " + tokenizer.digest()),
            std::string::npos)
      << out.str();
  EXPECT_EQ(tokenize({.tokenizer = command.out, .decode = true}, tokenize({.tokenizer = command.out}, text)), text);

  command.vocab_size = 5000;
  command.min_frequency = 3;
  command.no_nfc = true;
  command.words = "gpt2";
  std::ostringstream fewer;
  run_data_tokenizer(command, fewer);
  EXPECT_NE(fewer.str().find("no other pair stands 3 times"), std::string::npos) << fewer.str();
  const Tokenizer second = Tokenizer::load(command.out);
  EXPECT_TRUE(second.json().normalizers.empty());
  EXPECT_TRUE(second.json().pre_tokenizer[0].use_regex);
  EXPECT_TRUE(second.id_of("\u0120dog")) << "of the second file";
}

TEST(DataTokenizer, RefusesBeforeItWorks) {
  const TempDir dir;
  write_text_atomic(dir / "bad.txt", "abc\xFF\n");
  TrainTokenizerCommand command;
  command.vocab_size = 300;
  command.texts = {dir / "bad.txt"};
  std::ostringstream out;
  const auto run = [&] { run_data_tokenizer(command, out); };
  command.out = dir / "none/tokenizer.json";
  expect_error(ExitCode::environment, {"there is no folder"}, run);
  command.out = dir.path();
  expect_error(ExitCode::environment, {"is a folder"}, run);
  command.out = dir / "tokenizer.json";
  expect_error(ExitCode::data, {"bad.txt: is not UTF-8 at byte 3 of 5"}, run);
  command.texts = {dir / "missing.txt"};
  expect_error(ExitCode::data, {"missing.txt"}, run);
  EXPECT_FALSE(std::filesystem::exists(command.out));
}

}  // namespace
}  // namespace hrm::data
