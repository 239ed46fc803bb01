#include "hrm/commands/data.h"

#include <gtest/gtest.h>

#include <set>
#include <sstream>

#include "data/data_support.h"
#include "hrm/data/maze.h"
#include "hrm/data/sudoku_symmetry.h"
#include "support/temp_dir.h"

namespace hrm::data {
namespace {

using test::TempDir;

std::vector<Grid> grids(const PuzzleDataset& dataset, bool labels) {
  std::vector<Grid> result;
  std::vector<int32_t> in(dataset.meta().seq_len), out(dataset.meta().seq_len);
  for (int64_t i = 0; i < dataset.num_examples(); ++i) {
    dataset.example(i, in.data(), out.data());
    Grid grid;
    for (const int32_t token : labels ? out : in) grid.push_back(static_cast<uint8_t>(token - 1));
    result.push_back(grid);
  }
  return result;
}

std::string run_sudoku(const SudokuCommand& command) {
  std::ostringstream out;
  run_data_sudoku(command, out);
  return out.str();
}

void inspect(const std::filesystem::path& path, int64_t example, std::ostream& out) {
  InspectCommand command;
  command.path = path;
  command.example = example;
  run_data_inspect(command, out);
}

TEST(DataSudoku, GeneratesSixBySixWithClassesHeldOut) {
  const TempDir dir;
  SudokuCommand command;
  command.generate = true;
  command.box = "2x3";
  command.empty = "18:20";
  command.train = 300;
  command.test = 100;
  command.augment = 2;
  command.seed = 5;
  command.out = dir / "six";
  const std::string summary = run_sudoku(command);
  EXPECT_NE(summary.find("of the 49 solution classes are held out"), std::string::npos) << summary;
  EXPECT_NE(summary.find("18 to 20 of 36 cells empty"), std::string::npos) << summary;
  EXPECT_NE(summary.find("one pass of constraint propagation"), std::string::npos) << summary;
  const SudokuGeometry six{2, 3};
  const auto train = open_dataset(dir / "six", "train", {}), test = open_dataset(dir / "six", "test", {});
  EXPECT_EQ(train->num_groups(), 300);
  EXPECT_EQ(train->num_puzzles(), 900);
  EXPECT_EQ(test->num_puzzles(), 100);
  EXPECT_EQ(train->meta().vocab_size, 8);
  std::set<Grid> train_forms, test_forms;
  for (const Grid& solution : grids(*train, true)) train_forms.insert(canonical_form(six, solution));
  for (const Grid& solution : grids(*test, true)) test_forms.insert(canonical_form(six, solution));
  for (const Grid& form : test_forms) EXPECT_FALSE(train_forms.contains(form));
  EXPECT_GE(test_forms.size(), 3u);
  EXPECT_GE(train_forms.size(), 20u);
  const std::vector<Grid> puzzles = grids(*train, false), answers = grids(*train, true);
  for (size_t i = 0; i < puzzles.size(); ++i) {
    const SolveResult solved = solve_sudoku(six, puzzles[i]);
    ASSERT_EQ(solved.solutions, 1);
    ASSERT_EQ(solved.grid, answers[i]);
  }
  // Copies belong to their puzzle's class, and the first of a group is the puzzle itself.
  EXPECT_EQ(canonical_form(six, answers[0]), canonical_form(six, answers[2]));
  EXPECT_NE(answers[0], answers[1]);
}

TEST(DataSudoku, GenerationDependsOnTheSeedAlone) {
  const TempDir dir;
  SudokuCommand command;
  command.generate = true;
  command.empty = "40:45";
  command.train = 20;
  command.test = 5;
  std::vector<std::vector<Grid>> seen;
  for (const auto& [name, seed] : {std::pair{"a", 1}, {"b", 1}, {"c", 2}}) {
    command.seed = seed;
    command.out = dir / name;
    run_sudoku(command);
    seen.push_back(grids(*open_dataset(dir / name, "train", {}), false));
  }
  EXPECT_EQ(seen[0], seen[1]);
  EXPECT_NE(seen[0], seen[2]);
}

TEST(DataSudoku, FromCsvFiles) {
  const TempDir dir;
  SudokuCommand command;
  command.train_csv = fixture("dataset_sudoku/source_train.csv");
  command.test_csv = fixture("dataset_sudoku/source_test.csv");
  command.subsample = 4;
  command.augment = 3;
  command.out = dir / "set";
  const std::string summary = run_sudoku(command);
  EXPECT_NE(summary.find("train: 4 puzzles, 16 with augmented copies"), std::string::npos) << summary;
  EXPECT_NE(summary.find("test: 7 puzzles"), std::string::npos) << summary;
  EXPECT_NE(summary.find("0 test solutions equal a training solution"), std::string::npos) << summary;
  EXPECT_EQ(open_dataset(dir / "set", "train", {})->num_puzzles(), 16);
  // The test set inside the training set is noticed, however it is augmented.
  command.train_csv = command.test_csv;
  command.subsample = 0;
  EXPECT_NE(run_sudoku(command).find("7 test solutions equal a training solution"), std::string::npos);
}

// data/README.md states this number.
TEST(DataSudoku, SolutionsThatTheShippedSetsShare) {
  const TempDir dir;
  SudokuCommand command;
  command.train_csv = shipped("train_17clue_1k.csv");
  command.test_csv = shipped("test_17clue_2k.csv");
  command.out = dir / "set";
  EXPECT_NE(run_sudoku(command).find("\n8 test solutions equal a training solution"), std::string::npos);
}

TEST(DataSudoku, BaselinesAreWhatTheySay) {
  const TempDir dir;
  // One empty cell in each of two rows: propagation solves it, a constant fills at most one of them.
  const std::string answer = "123456456123231564564231312645645312";
  std::string question = answer;
  question[0] = question[7] = '.';
  write_text(dir / "test.csv", "source,question,answer,rating\nx," + question + "," + answer + ",1\n");
  SudokuCommand command;
  command.test_csv = dir / "test.csv";
  command.out = dir / "set";
  const std::string summary = run_sudoku(command);
  EXPECT_NE(summary.find("best constant in the empty cells    exact   0.0 %   cells  97.2 %"), std::string::npos)
      << summary;
  EXPECT_NE(summary.find("one pass of constraint propagation  exact 100.0 %   cells 100.0 %"), std::string::npos)
      << summary;
}

TEST(DataSudoku, Refusals) {
  const TempDir dir;
  SudokuCommand command;
  const auto expect_usage = [&](const std::vector<std::string>& parts) {
    expect_error(ExitCode::usage, parts, [&] { run_sudoku(command); });
  };
  expect_usage({"give --generate, or --train-csv and --test-csv"});
  command.generate = true;
  expect_usage({"--out"});
  command.out = dir / "set";
  command.train_csv = "x.csv";
  expect_usage({"not both"});
  command.train_csv.clear();
  command.box = "2by3";
  expect_usage({"--box \"2by3\" is not of the form RxC"});
  command.box = "9x9";
  expect_usage({"not a square grid"});
  command.box = "2x3";
  command.empty = "20";
  expect_usage({"--empty \"20\" is not of the form MIN:MAX"});
  command.empty = "20:40";
  expect_usage({"--empty 20:40", "1 to 35 cells"});
  command.empty = "33:33";
  expect_usage({"33 to 33 empty cells", "lower --empty"});
  command.empty = "18:20";
  command.train = command.test = 0;
  expect_usage({"nothing to generate"});
  command.generate = false;
  command.train_csv = dir / "missing.csv";
  expect_error(ExitCode::data, {"missing.csv"}, [&] { run_sudoku(command); });
}

TEST(DataMaze, GeneratesAndAugments) {
  const TempDir dir;
  MazeCommand command;
  command.generate = true;
  command.size = 12;
  command.min_path = 15;
  command.train = 10;
  command.test = 5;
  command.augment = true;
  command.out = dir / "maze";
  std::ostringstream out;
  run_data_maze(command, out);
  EXPECT_NE(out.str().find("train: 10 mazes, 80 with augmented copies"), std::string::npos) << out.str();
  const auto train = open_dataset(dir / "maze", "train", {});
  EXPECT_EQ(train->kind(), PuzzleKind::maze);
  EXPECT_EQ(train->num_groups(), 10);
  EXPECT_EQ(train->num_puzzles(), 80);
  std::vector<int32_t> in(144), label(144);
  for (int64_t i = 0; i < 80; ++i) {
    train->example(i, in.data(), label.data());
    std::string question, answer;
    for (const int32_t token : in) question += maze_character(token);
    for (const int32_t token : label) answer += maze_character(token);
    const PathCheck check = check_maze_answer(question, answer);
    EXPECT_TRUE(check.shortest);
    EXPECT_GT(check.length, 15);
  }
  EXPECT_EQ(open_dataset(dir / "maze", "test", {})->num_puzzles(), 5);
  command.size = 10;
  command.min_path = 110;
  expect_error(ExitCode::usage, {"no maze of size 10"}, [&] { run_data_maze(command, out); });
}

TEST(DataInspect, DirectoriesAndFiles) {
  std::ostringstream out;
  inspect(fixture("dataset_sudoku/aug"), 0, out);
  EXPECT_NE(out.str().find("train: 10 groups, 30 puzzles, 30 examples"), std::string::npos) << out.str();
  EXPECT_NE(out.str().find("test: 7 groups"), std::string::npos);
  EXPECT_NE(out.str().find("9 8 . | 7 . . | 6 . ."), std::string::npos) << out.str();
  out.str("");
  const auto csv = fixture("dataset_sudoku/source_test.csv");
  inspect(csv, 6, out);
  EXPECT_NE(out.str().find("kind sudoku"), std::string::npos);
  EXPECT_NE(out.str().find("example 6"), std::string::npos);
  expect_error(ExitCode::usage, {"--example 7"}, [&] { inspect(csv, 7, out); });
  const TempDir dir;
  expect_error(ExitCode::data, {"neither a train nor a test folder"}, [&] { inspect(dir.path(), 0, out); });
}

}  // namespace
}  // namespace hrm::data
