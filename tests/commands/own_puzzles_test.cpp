#include <gtest/gtest.h>

#include <set>
#include <sstream>

#include "data/data_support.h"
#include "hrm/commands/data.h"
#include "hrm/data/dihedral.h"
#include "hrm/data/stream.h"
#include "support/temp_dir.h"

namespace hrm::data {
namespace {

using Row = std::vector<int32_t>;

// Inputs and labels of each example.
std::vector<std::pair<Row, Row>> rows_of(const PuzzleDataset& dataset) {
  std::vector<std::pair<Row, Row>> rows;
  for (int64_t i = 0; i < dataset.num_examples(); ++i) {
    Row inputs(dataset.meta().seq_len), labels(dataset.meta().seq_len);
    dataset.example(i, inputs.data(), labels.data());
    rows.emplace_back(inputs, labels);
  }
  return rows;
}

class OwnPuzzles : public ::testing::Test {
 protected:
  OwnPuzzles() {
    command_.train = dir_ / "train.csv";
    command_.out = dir_ / "out";
  }
  std::string build(const std::string& train, const std::string& test = "") {
    write_text(dir_ / "train.csv", "question,answer\n" + train);
    if (!test.empty()) {
      write_text(dir_ / "test.csv", "question,answer\n" + test);
      command_.test = dir_ / "test.csv";
    }
    std::ostringstream out;
    run_data_own_puzzles(command_, out);
    return out.str();
  }
  void refuse(ExitCode code, const std::vector<std::string>& parts, const std::string& train,
              const std::string& test = "") {
    expect_error(code, parts, [&] { build(train, test); });
  }
  std::shared_ptr<PuzzleDataset> open(const char* split) { return open_dataset(dir_ / "out", split, {}); }
  std::string inspect() {
    InspectCommand command;
    command.path = dir_ / "out";
    std::ostringstream out;
    run_data_inspect(command, out);
    return out.str();
  }

  test::TempDir dir_;
  OwnPuzzlesCommand command_;
};

TEST_F(OwnPuzzles, WritesAFolderThatKnowsItsSymbols) {
  const std::string summary = build("ab.c,abbc\n....,cccc\n", "a...,abcc\n");
  EXPECT_NE(summary.find("grids of 2x2, 4 symbols, vocabulary 5"), std::string::npos) << summary;
  const auto train = open("train"), test = open("test");
  EXPECT_EQ(train->num_groups(), 2);
  EXPECT_EQ(train->kind(), PuzzleKind::unknown);
  ASSERT_TRUE(test->vocabulary());
  EXPECT_EQ(test->vocabulary()->tokens, (std::vector<std::string>{"", ".", "a", "b", "c"}));
  EXPECT_EQ(rows_of(*train)[0], (std::pair{Row{2, 3, 1, 4}, Row{2, 3, 3, 4}}));
  const std::string text = inspect();
  EXPECT_NE(text.find("grids of 2x2, 4 symbols"), std::string::npos) << text;
  EXPECT_NE(text.find("ab\n.c\n"), std::string::npos) << text;
}

TEST_F(OwnPuzzles, PadsGridsToTheLargest) {
  build("\"ab\nba\",aaaa\n\"aba\n\",bbb\n");
  const auto rows = rows_of(*open("train"));
  const auto x = static_cast<int32_t>(kIgnoreLabel);
  EXPECT_EQ(rows[0], (std::pair{Row{1, 2, 0, 2, 1, 0}, Row{1, 1, x, 1, 1, x}}));
  EXPECT_EQ(rows[1], (std::pair{Row{1, 2, 1, 0, 0, 0}, Row{2, 2, 2, x, x, x}}));
  command_.symmetries = "dihedral";
  refuse(ExitCode::usage, {"grids of one size", "train.csv:2 has 2x2", "train.csv:4 1x3"},
         "\"ab\nba\",aaaa\n\"aba\n\",bbb\n");
}

TEST_F(OwnPuzzles, AnswersOfPairsHaveAnEnd) {
  command_.form = PuzzleForm::pairs;
  build("1+1,2\n2,122\n");
  const auto rows = rows_of(*open("train"));
  const auto x = static_cast<int32_t>(kIgnoreLabel);
  EXPECT_EQ(rows[0], (std::pair{Row{3, 2, 3, 0}, Row{4, kEndToken, x, x}}));
  EXPECT_EQ(rows[1], (std::pair{Row{4, 0, 0, 0}, Row{3, 4, 4, kEndToken}}));
}

TEST_F(OwnPuzzles, SymmetriesMakeCopiesAndKeepThemTogether) {
  command_.symmetries = "dihedral";
  build("abcd,dcba\naaaa,bbbb\ncadb,abcd\n");  // the third question is the first, rotated
  auto train = open("train");
  EXPECT_EQ(train->num_groups(), 2);
  EXPECT_EQ(train->puzzles_of_group(1).size(), 1) << "all copies are equal";
  EXPECT_EQ(train->puzzles_of_group(0).size(), 16) << "two answers";
  EXPECT_EQ(train->vocabulary()->symmetries.size(), 8u);
  command_.copies = 2;
  build("abcd,dcba\naaaa,bbbb\n");
  EXPECT_EQ(open("train")->puzzles_of_group(0).size(), 3);
  command_.copies = -1;
  build("\"ab\ncd\naa\",\"ab\ncd\naa\"\n");
  train = open("train");
  EXPECT_EQ(train->puzzles_of_group(0).size(), 4) << "half of the symmetries keep 3x2";
  TrainStreamOptions options;
  options.augmentation = config::Augmentation::dihedral;
  expect_error(ExitCode::usage, {"data.augmentation is dihedral", "vocabulary.json"},
               [&] { augmentation_of(*train, options); });
}

TEST_F(OwnPuzzles, SplitsShareNoQuestion) {
  std::string puzzles;
  for (char a = 'a'; a < 'k'; ++a) {
    // Each question and its transposition, with different answers.
    const std::string cells{a, static_cast<char>(a + 1), 'x', 'y'}, turned{a, 'x', static_cast<char>(a + 1), 'y'};
    puzzles += cells + "," + cells + "\n" + turned + "," + turned + "\n" + cells + "," + cells + "\n";
  }
  command_.symmetries = "dihedral";
  command_.copies = 0;
  command_.test_share = 0.3;
  const std::string summary = build(puzzles);
  EXPECT_NE(summary.find("train: 7 groups of 14 puzzles\ntest: 3 groups of 6 puzzles\n10 repeated puzzles"),
            std::string::npos)
      << summary;
  std::set<Row> seen;
  for (const auto& [inputs, labels] : rows_of(*open("train"))) {
    for (int transform = 0; transform < 8; ++transform) seen.insert(dihedral(transform, 2, 2, inputs));
  }
  const auto test = rows_of(*open("test"));
  for (const auto& [inputs, labels] : test) EXPECT_FALSE(seen.contains(inputs));
  build(puzzles);
  EXPECT_EQ(rows_of(*open("test")), test) << "depends on the seed alone";
  command_.seed = 1;
  build(puzzles);
  EXPECT_NE(rows_of(*open("test")), test);
}

TEST_F(OwnPuzzles, RefusesQuestionsInBothFiles) {
  refuse(ExitCode::data, {"test.csv:3: the test question is the training question at", "train.csv:2"}, "abcd,dcba\n",
         "aaaa,bbbb\nabcd,dcba\n");
  build("abcd,dcba\n", "cadb,abcd\n");
  command_.symmetries = "dihedral";
  refuse(ExitCode::data, {"test.csv:2: the test question is a symmetric copy of", "train.csv:2"}, "abcd,dcba\n",
         "cadb,abcd\n");
}

TEST_F(OwnPuzzles, RefusesWhatCannotBeADataset) {
  refuse(ExitCode::data, {"train.csv:3: the question is that of line 2"}, "a,b\na,c\n");
  command_.test_share = 0.5;
  refuse(ExitCode::usage, {"--test-share 0.5 of 1 question leaves none"}, "a,b\n");
  build("a,b\nb,a\n");
  command_.test_share = 0;
  refuse(ExitCode::usage, {"holds a test split of earlier puzzles"}, "a,b\n");
  command_.copies = 1;
  refuse(ExitCode::usage, {"--copies", "--symmetries dihedral"}, "a,b\n");
  config::DataConfig config;
  config.kind = config::PuzzleFileKind::maze;
  expect_error(ExitCode::usage, {"data.kind is maze", "vocabulary.json"},
               [&] { open_dataset(dir_ / "out", "train", config); });
  write_vocabulary(dir_ / "out", {PuzzleForm::grid, {"", "a"}, 1, 1, {}});
  expect_error(ExitCode::data, {"3 tokens", "vocabulary.json says 1 and 2"}, [&] { open("train"); });
}

}  // namespace
}  // namespace hrm::data
