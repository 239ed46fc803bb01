#include "hrm/data/puzzle_records.h"

#include <gtest/gtest.h>

#include "data/data_support.h"
#include "support/packed.h"
#include "support/temp_dir.h"

namespace hrm::data {
namespace {

class PuzzleRecords : public ::testing::Test {
 protected:
  // The questions of the file as texts.
  std::vector<std::string> read(const std::string& name, const std::string& text, PuzzleRecordOptions options = {},
                                const std::string& alphabet = "") {
    write_text(dir_ / name, text);
    SymbolTable symbols(alphabet, 255);
    std::vector<std::string> questions;
    records_ = read_puzzle_records(dir_ / name, options, symbols);
    for (const PuzzleRecord& record : records_) {
      questions.emplace_back();
      for (const uint8_t number : record.question) questions.back() += symbols.texts()[number];
    }
    return questions;
  }
  void refuse(const std::string& name, const std::string& text, const std::vector<std::string>& parts,
              const std::string& alphabet = "") {
    expect_error(ExitCode::data, parts, [&] { read(name, text, {}, alphabet); });
  }

  test::TempDir dir_;
  std::vector<PuzzleRecord> records_;
};

constexpr const char* kCsv = "question,answer\nab.c,abbc\n....,cccc\n";

TEST_F(PuzzleRecords, ReadsCsvAndJsonLinesAlike) {
  const std::vector<std::string> want{"ab.c", "...."};
  const std::string lines = R"({"question": "ab.c", "answer": ["ab", "bc"]})"
                            "\n\n"
                            R"({"question": [[".", "."], [".", "."]], "answer": "cccc"})";
  EXPECT_EQ(read("p.csv", kCsv), want);
  EXPECT_EQ(records_[1].line, 3u);
  EXPECT_EQ(records_[1].rows, 2);
  EXPECT_EQ(read("p.jsonl", lines), want);
  EXPECT_EQ(records_[1].line, 3u);
  EXPECT_EQ(read("p.csv.gz", test::gzip_packed(kCsv)), want);
  EXPECT_EQ(read("p.JSONL.zst", test::zstd_packed(lines)), want);
}

TEST_F(PuzzleRecords, AcceptsByteOrderMarksAndCrlf) {
  EXPECT_EQ(read("p.csv", "\xEF\xBB\xBFquestion,answer\r\nab.c,abbc\r\n"), (std::vector<std::string>{"ab.c"}));
  EXPECT_EQ(read("p.jsonl", "\xEF\xBB\xBF{\"question\":\"a\",\"answer\":\"b\"}\r\n"), (std::vector<std::string>{"a"}));
}

TEST_F(PuzzleRecords, ReadsOtherColumnsAndSequences) {
  PuzzleRecordOptions options;
  options.form = PuzzleForm::pairs;
  options.question_field = "in";
  options.answer_field = "out";
  EXPECT_EQ(read("p.csv", "id,in,out\n1,1+2,3\n2,9+9+9,27\n", options), (std::vector<std::string>{"1+2", "9+9+9"}));
  EXPECT_EQ(records_[1].answer.size(), 2u);
}

TEST_F(PuzzleRecords, EachFaultNamesFileAndLine) {
  refuse("p.csv", "", {"p.csv", "empty"});
  refuse("p.csv", "question,answer\n", {"p.csv: holds no puzzles"});
  refuse("p.jsonl", "\n", {"p.jsonl: holds no puzzles"});
  refuse("p.txt", "a", {"p.txt' is neither *.csv nor *.jsonl"});
  refuse("p.csv", "question,solution\na,b\n", {"p.csv", "answer", "solution"});
  refuse("p.csv", "question,answer\nabcd,abc\n", {"p.csv:2: the question has 2x2 cells, but the answer 3 cells"});
  refuse("p.csv", "question,answer\nabcde,abcde\n", {"p.csv:2: has 5 cells", "--rows or --cols"});
  refuse("p.csv", "question,answer\n\"ab\nc\",a\n", {"p.csv:2: the question: row 2 has length 1"});
  refuse("p.jsonl", "{\"question\":\"a\",\"answer\":\"a\"}\n[]\n", {"p.jsonl:2: the line is not a JSON object"});
  refuse("p.jsonl", "{\"question\":\"a\"}\n", {"p.jsonl:1: the record has no member \"answer\""});
  refuse("p.jsonl", "{\"question\":", {"p.jsonl:1"});
  refuse("p.jsonl", R"({"question":["ab"],"answer":["a","b"]})", {"p.jsonl:1", "1x2 cells", "2x1 cells"});
  refuse("p.csv", "question,answer\na,a\nb,c\n", {"p.csv:3: the symbol \"c\" is not in the alphabet"}, "ab");
}

TEST_F(PuzzleRecords, RefusesMoreSymbolsThanBytesCanNumber) {
  const auto line = [](int symbol) { return cat("{\"question\":[[", symbol, "]],\"answer\":[[0]]}\n"); };
  std::string text;
  for (int i = 0; i < 255; ++i) text += line(i);
  EXPECT_EQ(read("p.jsonl", text).size(), 255u);
  refuse("p.jsonl", text + line(255), {"p.jsonl:256", "\"255\" is symbol number 256", "at most 255"});
}

TEST(SymbolTable, OrdersSymbolsByTheAlphabetOrByLength) {
  SymbolTable given("ba", 255), collected("", 255);
  for (const char* text : {"10", "b", "2"}) collected.number(text);
  EXPECT_EQ(given.order(), (std::vector<uint8_t>{0, 1}));
  EXPECT_EQ(collected.order(), (std::vector<uint8_t>{2, 1, 0}));
  expect_error(ExitCode::usage, {"--alphabet", "'a' stands in it twice"}, [] { SymbolTable("aba", 255); });
  expect_error(ExitCode::usage, {"--alphabet", "at most 2"}, [] { SymbolTable("abc", 2); });
}

}  // namespace
}  // namespace hrm::data
