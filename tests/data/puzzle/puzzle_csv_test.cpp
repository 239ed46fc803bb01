#include "hrm/data/puzzle_csv.h"

#include <gtest/gtest.h>

#include <set>

#include "data/data_support.h"
#include "hrm/data/dataset.h"
#include "support/packed.h"
#include "support/temp_dir.h"

namespace hrm::data {
namespace {

using test::TempDir;

const std::string kHeader = "source,question,answer,rating\n";
const std::string kPuzzle = "................12....34.........5....1..6.....7...3...1.7.2.6.34.......5....8...";
const std::string kCsvAnswer = "165827934483965712729134658694273581831596247257481396918752463342619875576348129";

std::string row(const std::string& question, const std::string& answer, const std::string& rating = "1") {
  return "test," + question + "," + answer + "," + rating + "\n";
}

class PuzzleCsvFile : public testing::Test {
 protected:
  std::filesystem::path write(const std::string& text) {
    write_text(dir_ / "puzzles.csv", text);
    return dir_ / "puzzles.csv";
  }
  void expect_refused(const std::string& text, const std::vector<std::string>& parts,
                      const PuzzleCsvOptions& options = {}) {
    const auto path = write(text);
    expect_error(ExitCode::data, parts, [&] { read_puzzle_csv(path, options); });
  }
  TempDir dir_;
};

TEST_F(PuzzleCsvFile, BothHeadersAndBothBlanks) {
  std::string zeros = kPuzzle;
  std::replace(zeros.begin(), zeros.end(), '.', '0');
  const PuzzleCsv ours = read_puzzle_csv(write(kHeader + row(kPuzzle, kCsvAnswer)), {});
  const PuzzleCsv official = read_puzzle_csv(write("source,q,a,rating\n" + row(zeros, kCsvAnswer)), {});
  EXPECT_EQ(ours.rows.inputs, official.rows.inputs);
  EXPECT_EQ(ours.rows.labels, official.rows.labels);
  EXPECT_EQ(ours.rows.inputs[0], 1);
  EXPECT_EQ(ours.rows.labels[0], 2);
  EXPECT_EQ(ours.rows.kind, PuzzleKind::sudoku);
  EXPECT_EQ(ours.rows.meta.vocab_size, 11);
  EXPECT_EQ(ours.rows.meta.ignore_label_id, 0);
}

TEST_F(PuzzleCsvFile, HeadersOfKaggleAndOfAnyName) {
  const PuzzleCsv usual = read_puzzle_csv(write(kHeader + row(kPuzzle, kCsvAnswer)), {});
  const std::string pair = kPuzzle + "," + kCsvAnswer + "\n";
  for (const char* header : {"quizzes,solutions\n", "puzzle,solution\n", "\xEF\xBB\xBFquizzes,solutions\r\n",
                             "Puzzle,Solution\n", "\"Quizzes\",\"Solutions\"\n", "QUESTION, answer \n"}) {
    const PuzzleCsv kaggle = read_puzzle_csv(write(header + pair), {});
    EXPECT_EQ(kaggle.rows.inputs, usual.rows.inputs) << header;
    EXPECT_EQ(kaggle.rows.labels, usual.rows.labels) << header;
  }
  // What else is wrong with a header is said.
  expect_refused(pair + pair, {"the first row is a puzzle already", "question,answer"});
  for (const auto& [mark, shown] : {std::pair{';', "sep=';'"}, {'\t', "sep='\\t'"}}) {
    const std::string other = cat("quizzes", mark, "solutions\n", kPuzzle, mark, kCsvAnswer, "\n");
    expect_refused(other, {"fields must have commas between them", shown, "dtype=str"});
  }
  PuzzleCsvOptions named;
  named.question_field = "unsolved";
  named.answer_field = "solved";
  // What is named comes before the usual names.
  EXPECT_EQ(read_puzzle_csv(write("unsolved,solved,question,answer\n" + kPuzzle + "," + kCsvAnswer + ",x,y\n"), named)
                .rows.inputs,
            usual.rows.inputs);
  expect_refused("unsolved,solved\n" + pair, {"none of its columns is the question (q, question, quizzes, puzzle)",
                                              "unsolved, solved", "data.question_field and data.answer_field"});
  named.answer_field = "right";
  expect_refused("unsolved,solved\n" + pair, {"there is no column 'right'; the columns are: unsolved, solved"}, named);
}

TEST_F(PuzzleCsvFile, CompressedAndInUpperCase) {
  const std::string text = kHeader + row(kPuzzle, kCsvAnswer);
  const std::vector<std::pair<std::string, std::string>> files = {
      {"S.CSV", text}, {"s.csv.gz", test::gzip_packed(text)}, {"s.CSV.zst", test::zstd_packed(text)}};
  for (const auto& [name, bytes] : files) {
    write_text(dir_ / name, bytes);
    EXPECT_EQ(open_dataset(dir_ / name, "train", {})->num_puzzles(), 1) << name;
  }
  write_text(dir_ / "s.gz", test::gzip_packed(text));
  write_text(dir_ / "s.parquet", "PAR1");
  write_text(dir_ / "s.jsonl", "{}\n");
  const std::vector<std::pair<std::filesystem::path, std::string>> others = {
      {dir_ / "s.gz", "gunzip"}, {dir_ / "s.parquet", ".to_csv('"}, {dir_ / "s.jsonl", "read with task=polychromic"}};
  for (const auto& [file, remedy] : others) {
    expect_error(ExitCode::data, {file.filename().string() + ": is neither a directory nor a .csv file", remedy},
                 [&] { open_dataset(file, "train", {}); });
  }
  expect_error(ExitCode::data, {"org/puzzles: no such file", "hf download org/puzzles --repo-type dataset"},
               [&] { open_dataset("org/puzzles", "train", {}); });
  config::DataConfig config;
  config.question_field = "answer";
  config.answer_field = "answer";
  const auto solved = open_dataset(dir_ / "S.CSV", "train", config);
  std::vector<int32_t> inputs(81), labels(81);
  solved->example(0, inputs.data(), labels.data());
  EXPECT_EQ(inputs, labels);
}

TEST_F(PuzzleCsvFile, OtherSizes) {
  const std::string answer = "123456456123231564564231312645645312";
  std::string question = answer;
  question[7] = question[20] = '.';
  const PuzzleCsv six = read_puzzle_csv(write(kHeader + row(question, answer)), {});
  EXPECT_EQ(six.geometry, (SudokuGeometry{2, 3}));
  EXPECT_EQ(six.rows.meta.vocab_size, 8);
}

TEST_F(PuzzleCsvFile, ReadsTheShippedFiles) {
  for (const auto& [file, count] : {std::pair{"train_17clue_1k.csv", 1000}, {"test_17clue_2k.csv", 2000}}) {
    const PuzzleCsv csv = read_puzzle_csv(shipped(file), {});  // solves every puzzle
    EXPECT_EQ(csv.lines_read, count);
    EXPECT_EQ(csv.rows.group_indices.size(), static_cast<size_t>(count) + 1);
  }
}

TEST_F(PuzzleCsvFile, WrongRowsAreNamedByLine) {
  const std::string good = kHeader + row(kPuzzle, kCsvAnswer);
  expect_refused(good + row(kPuzzle.substr(1), kCsvAnswer), {"puzzles.csv:3: ", "the question has 80 characters"});
  expect_refused(kHeader + row(kPuzzle.substr(1), kCsvAnswer), {"puzzles.csv:2: ", "80 characters"});
  expect_refused(good + row(kPuzzle, kCsvAnswer + "1"), {"puzzles.csv:3: ", "the answer has 82 characters"});
  std::string bad = kPuzzle;
  bad[0] = 'x';
  expect_refused(good + row(bad, kCsvAnswer), {"puzzles.csv:3: ", "'x' at character 1"});
  bad = kPuzzle;
  bad[15] = '1';
  expect_refused(good + row(bad, kCsvAnswer), {"puzzles.csv:3: ", "contradict", "digit 1 occurs twice in row 2"});
  bad = kCsvAnswer;
  std::swap(bad[0], bad[1]);
  expect_refused(good + row(kPuzzle, bad), {"puzzles.csv:3: ", "the answer is not a solution"});
  bad[0] = bad[1] = '.';
  expect_refused(good + row(kPuzzle, bad), {"puzzles.csv:3: ", "blank at character 1"});
  // A valid grid, but of another puzzle.
  bad = kCsvAnswer;
  for (char& digit : bad) digit = digit == '9' ? '1' : static_cast<char>(digit + 1);
  expect_refused(good + row(kPuzzle, bad), {"puzzles.csv:3: ", "does not match the given digit at character 17"});
  // One clue of 17 taken away.
  bad = kPuzzle;
  bad[16] = '.';
  expect_refused(good + row(bad, kCsvAnswer), {"puzzles.csv:3: ", "more than one solution"});
  PuzzleCsvOptions trusting;
  trusting.check_unique_up_to = 1;
  EXPECT_EQ(read_puzzle_csv(write(good + row(bad, kCsvAnswer)), trusting).lines_read, 2);
}

TEST_F(PuzzleCsvFile, ForeignTextIsHarmlessInMessages) {
  std::string question = kPuzzle;
  question[3] = '\n';
  expect_refused(kHeader + row("\"" + question + "\"", kCsvAnswer), {"has '\\n' at character 4"});
  question[3] = '\x1b';
  expect_refused(kHeader + row(question, kCsvAnswer), {"has '\\x1B' at character 4"});
  expect_refused(kHeader + row("\"S#\x1bG\"", "SooG"), {"has '\\x1B' at character 3"});
  PuzzleCsvOptions rated;
  rated.min_rating = 1;
  expect_refused(kHeader + row(kPuzzle, kCsvAnswer, "\x1b" + std::string(100, '9')),
                 {"the rating \"\\x1B99", "9...\" is not an integer"}, rated);
}

TEST_F(PuzzleCsvFile, WrongFiles) {
  expect_refused("source,question,rating\nx,y,1\n", {"answer", "source, question, rating"});
  expect_refused(kHeader, {"holds no puzzles"});
  expect_refused(kHeader + "test," + kPuzzle + "\n", {"puzzles.csv:2"});
  PuzzleCsvOptions options;
  options.min_rating = 5;
  expect_refused(kHeader + row(kPuzzle, kCsvAnswer, "hard"), {"puzzles.csv:2: ", "the rating \"hard\""}, options);
  expect_refused(kHeader + row(kPuzzle, kCsvAnswer, "4"), {"none of its 1 puzzles is rated 5 or above"}, options);
}

TEST_F(PuzzleCsvFile, SelectsByRatingAndAtRandom) {
  PuzzleCsvOptions options;
  options.min_rating = 10000;
  const PuzzleCsv hard = read_puzzle_csv(shipped("train_17clue_1k.csv"), options);
  const int64_t kept = static_cast<int64_t>(hard.rows.puzzle_identifiers.size());
  EXPECT_GT(kept, 100);
  EXPECT_LT(kept, 900);
  options.subsample = 50;
  std::set<std::vector<uint8_t>> subsets;
  for (options.seed = 0; options.seed < 3; ++options.seed) {
    const PuzzleCsv some = read_puzzle_csv(shipped("train_17clue_1k.csv"), options);
    ASSERT_EQ(some.rows.puzzle_identifiers.size(), 50u);
    EXPECT_EQ(some.rows.inputs, read_puzzle_csv(shipped("train_17clue_1k.csv"), options).rows.inputs);
    subsets.insert(some.rows.inputs);
    // Each kept row is a row of the file.
    std::set<std::vector<uint8_t>> all;
    for (int64_t i = 0; i < kept; ++i) {
      all.insert({hard.rows.inputs.begin() + i * 81, hard.rows.inputs.begin() + (i + 1) * 81});
    }
    std::set<std::vector<uint8_t>> seen;
    for (int64_t i = 0; i < 50; ++i) {
      const std::vector<uint8_t> one(some.rows.inputs.begin() + i * 81, some.rows.inputs.begin() + (i + 1) * 81);
      EXPECT_TRUE(all.contains(one));
      seen.insert(one);
    }
    EXPECT_EQ(seen.size(), 50u);
  }
  EXPECT_EQ(subsets.size(), 3u);
  options.subsample = 1001;
  expect_error(ExitCode::usage, {"a subsample of 1001"},
               [&] { read_puzzle_csv(shipped("train_17clue_1k.csv"), options); });
}

// The official maze file has the columns source, q, a, rating and grids with leading blanks.
TEST_F(PuzzleCsvFile, OfficialMazeLayout) {
  const std::string solvable =
      " S  "
      " ## "
      "    "
      "###G";
  const std::string solved =
      " Soo"
      " ##o"
      "   o"
      "###G";
  const PuzzleCsv csv = read_puzzle_csv(
      write("source,q,a,rating\nmaze," + solvable + "," + solved + ",5\nmaze," + solvable + "," + solved + ",5\n"), {});
  EXPECT_EQ(csv.rows.kind, PuzzleKind::maze);
  EXPECT_EQ(csv.rows.meta.vocab_size, 6);
  EXPECT_EQ(csv.rows.meta.seq_len, 16);
  EXPECT_EQ((std::vector<uint8_t>(csv.rows.inputs.begin(), csv.rows.inputs.begin() + 4)),
            (std::vector<uint8_t>{2, 3, 2, 2}));
  EXPECT_EQ((std::vector<uint8_t>(csv.rows.labels.begin(), csv.rows.labels.begin() + 4)),
            (std::vector<uint8_t>{2, 3, 5, 5}));
  expect_refused(kHeader + row(solvable, solvable), {"puzzles.csv:2: ", "one path of 'o'"});
  expect_refused(kHeader + row("S#", "S#"), {"puzzles.csv:2: ", "not a square grid"});
  expect_refused(kHeader + row("S###", "S###"), {"puzzles.csv:2: ", "1 'S' and 0 'G'"});
  expect_refused(kHeader + row(solvable, solved) + row("S  G", "SooG"), {"puzzles.csv:3: ", "the first maze has 16"});
  PuzzleCsvOptions options;
  options.kind = config::PuzzleFileKind::sudoku;
  expect_refused(kHeader + row(solvable, solved), {"puzzles.csv:2: ", "which is neither blank nor a digit"}, options);
}

}  // namespace
}  // namespace hrm::data
