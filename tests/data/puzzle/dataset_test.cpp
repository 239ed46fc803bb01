#include "hrm/data/dataset.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <span>

#include "data/data_support.h"
#include "hrm/base/file.h"
#include "hrm/formats/npy.h"
#include "support/temp_dir.h"

namespace hrm::data {
namespace {

namespace fs = std::filesystem;
using test::TempDir;

const config::DataConfig kDefaults;

struct Example {
  std::vector<int32_t> inputs, labels;
  bool operator==(const Example&) const = default;
};

Example read(const PuzzleDataset& dataset, int64_t index) {
  Example example{std::vector<int32_t>(dataset.meta().seq_len), std::vector<int32_t>(dataset.meta().seq_len)};
  dataset.example(index, example.inputs.data(), example.labels.data());
  return example;
}

// A copy of the fixture directory that a test may damage.
class DamagedDataset : public testing::Test {
 protected:
  void SetUp() override { fs::copy(fixture("dataset_sudoku/plain"), dir_.path(), fs::copy_options::recursive); }
  fs::path file(const std::string& what) const { return dir_ / ("train/all__" + what + ".npy"); }

  template <class T>
  void write(const std::string& what, DType dtype, std::vector<int64_t> shape, const std::vector<T>& values) {
    write_npy(file(what), dtype, shape, std::as_bytes(std::span(values)));
  }
  void replace_in_meta(const std::string& from, const std::string& to) {
    std::string text = read_text(dir_ / "train/dataset.json", ExitCode::data);
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos);
    write_text(dir_ / "train/dataset.json", text.replace(at, from.size(), to));
  }
  void expect_refused(const std::vector<std::string>& parts) {
    expect_error(ExitCode::data, parts, [&] { open_dataset(dir_.path(), "train", kDefaults); });
  }

  TempDir dir_;
};

TEST(Dataset, ReadsTheOfficialLayout) {
  const auto train = open_dataset(fixture("dataset_sudoku/aug"), "train", kDefaults);  // int64 tokens
  EXPECT_EQ(train->num_groups(), 10);
  EXPECT_EQ(train->num_puzzles(), 30);
  EXPECT_EQ(train->num_examples(), 30);
  EXPECT_EQ(train->puzzles_of_group(1).begin, 3);
  EXPECT_EQ(train->puzzles_of_group(1).size(), 3);
  EXPECT_EQ(train->examples_of_puzzle(4).begin, 4);
  EXPECT_EQ(train->puzzle_of_example(29), 29);
  EXPECT_TRUE(train->one_example_per_puzzle());
  EXPECT_EQ(train->meta().vocab_size, 11);
  EXPECT_EQ(train->meta().seq_len, 81);
  EXPECT_EQ(train->meta().ignore_label_id, 0);
  EXPECT_EQ(train->mean_puzzle_examples(), 1);
  EXPECT_EQ(train->kind(), PuzzleKind::sudoku);
  EXPECT_EQ(train->identifiers(), std::vector<std::string>{"<blank>"});
  EXPECT_EQ(train->parts().size(), 1u);
  // The first of each group is the puzzle of the CSV file.
  config::DataConfig config;
  const auto csv = open_dataset(fixture("dataset_sudoku/source_test.csv"), "test", config);
  const auto test = open_dataset(fixture("dataset_sudoku/aug"), "test", kDefaults);  // uint8 tokens
  ASSERT_EQ(csv->num_examples(), test->num_examples());
  for (int64_t i = 0; i < csv->num_examples(); ++i) EXPECT_EQ(read(*csv, i), read(*test, i));
}

TEST_F(DamagedDataset, AllIntegerTypesReadTheSame) {
  const auto original = open_dataset(fixture("dataset_sudoku/plain"), "train", kDefaults);
  std::vector<int32_t> narrow;
  std::vector<int64_t> wide;
  for (int64_t i = 0; i < 10; ++i) {
    const Example example = read(*original, i);
    narrow.insert(narrow.end(), example.inputs.begin(), example.inputs.end());
    wide.insert(wide.end(), example.labels.begin(), example.labels.end());
  }
  write("inputs", DType::i32, {10, 81}, narrow);
  write("labels", DType::i64, {10, 81}, wide);
  const auto dataset = open_dataset(dir_.path(), "train", kDefaults);
  for (int64_t i = 0; i < 10; ++i) EXPECT_EQ(read(*dataset, i), read(*original, i));
}

TEST_F(DamagedDataset, IgnoredLabelsBecomeMinus100) {
  std::vector<uint8_t> labels(10 * 81, 3);
  labels[5] = 0;
  write("labels", DType::u8, {10, 81}, labels);
  const Example example = read(*open_dataset(dir_.path(), "train", kDefaults), 0);
  EXPECT_EQ(example.labels[5], kIgnoreLabel);
  EXPECT_EQ(example.labels[6], 3);
  replace_in_meta("\"ignore_label_id\": 0", "\"ignore_label_id\": null");
  EXPECT_EQ(read(*open_dataset(dir_.path(), "train", kDefaults), 0).labels[5], 0);
}

TEST_F(DamagedDataset, SeveralSetsFollowEachOther) {
  for (const char* what : {"inputs", "labels", "puzzle_identifiers", "puzzle_indices", "group_indices"}) {
    fs::copy(file(what), dir_ / (std::string("train/more__") + what + ".npy"));
  }
  replace_in_meta("[\"all\"]", "[\"all\", \"more\"], \"total_puzzles\": 20");
  replace_in_meta("\"total_groups\": 10", "\"total_groups\": 20");
  const auto dataset = open_dataset(dir_.path(), "train", kDefaults);
  EXPECT_EQ(dataset->num_examples(), 20);
  ASSERT_EQ(dataset->parts().size(), 2u);
  EXPECT_EQ(dataset->parts()[1].name, "more");
  EXPECT_EQ(dataset->parts()[1].examples.begin, 10);
  EXPECT_EQ(dataset->puzzles_of_group(10).begin, 10);
  for (int64_t i = 0; i < 10; ++i) EXPECT_EQ(read(*dataset, i), read(*dataset, i + 10));
}

TEST(Dataset, MissingThings) {
  const TempDir dir;
  expect_error(ExitCode::data, {"/nowhere", "no such file"}, [] { open_dataset("/nowhere", "train", kDefaults); });
  expect_error(ExitCode::data, {"has no folder \"test\""}, [&] { open_dataset(dir.path(), "test", kDefaults); });
  write_text(dir / "hub" / "train.csv", "question,answer\n");
  expect_error(ExitCode::data, {"has no folder \"train\"", "give a file of it, such as '", "hub/train.csv'"},
               [&] { open_dataset(dir / "hub", "train", kDefaults); });
  write_text(dir / "puzzles.txt", "x");
  expect_error(ExitCode::data, {"puzzles.txt", "neither a directory nor a .csv file"},
               [&] { open_dataset(dir / "puzzles.txt", "train", kDefaults); });
}

TEST_F(DamagedDataset, MissingFile) {
  fs::remove(file("labels"));
  expect_refused({"all__labels.npy"});
  fs::remove(dir_ / "train/dataset.json");
  expect_refused({"dataset.json"});
}

TEST_F(DamagedDataset, TruncatedArray) {
  fs::resize_file(file("inputs"), 300);
  expect_refused({"all__inputs.npy"});
}

TEST_F(DamagedDataset, WrongType) {
  write("inputs", DType::f32, {10, 81}, std::vector<float>(810, 1));
  expect_refused({"all__inputs.npy", "dtype F32"});
}

TEST_F(DamagedDataset, WrongShape) {
  write("inputs", DType::u8, {10, 80}, std::vector<uint8_t>(800, 1));
  expect_refused({"all__inputs.npy", "[10, 80]", "81"});
}

TEST_F(DamagedDataset, LabelsOfAnotherLength) {
  write("labels", DType::u8, {9, 81}, std::vector<uint8_t>(729, 1));
  expect_refused({"all__labels.npy", "9 rows", "10"});
}

TEST_F(DamagedDataset, TokenOutsideTheVocabulary) {
  std::vector<uint8_t> tokens(810, 1);
  tokens[3 * 81 + 7] = 11;
  write("inputs", DType::u8, {10, 81}, tokens);
  expect_refused({"all__inputs.npy", "token 11 in row 3, column 7", "0..10"});
  write("inputs", DType::i64, {10, 81}, std::vector<int64_t>(810, -1));
  expect_refused({"token -1 in row 0"});
}

TEST_F(DamagedDataset, BrokenIndices) {
  write("puzzle_indices", DType::i32, {11}, std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11});
  expect_refused({"all__puzzle_indices.npy", "ends with 11", "10 examples"});
  write("puzzle_indices", DType::i32, {11}, std::vector<int32_t>{0, 1, 2, 3, 4, 4, 6, 7, 8, 9, 10});
  expect_refused({"all__puzzle_indices.npy", "entry 5"});
  write("puzzle_indices", DType::i32, {3}, std::vector<int32_t>{0, 5, 10});
  expect_refused({"all__puzzle_indices.npy", "has 3 entries", "10 puzzle identifiers"});
}

TEST_F(DamagedDataset, BrokenGroups) {
  write("group_indices", DType::i32, {2}, std::vector<int32_t>{1, 10});
  expect_refused({"all__group_indices.npy", "start with 0"});
  write("group_indices", DType::i32, {2}, std::vector<int32_t>{0, 10});
  expect_refused({"dataset.json", "\"total_groups\" is 10, but the sets have 1"});
}

TEST_F(DamagedDataset, IdentifierOutOfRange) {
  write("puzzle_identifiers", DType::i32, {10}, std::vector<int32_t>{0, 0, 0, 0, 0, 0, 0, 0, 0, 1});
  expect_refused({"all__puzzle_identifiers.npy", "entry 9 is 1"});
}

TEST_F(DamagedDataset, BrokenMeta) {
  replace_in_meta("\"vocab_size\": 11", "\"vocab_size\": \"11\"");
  expect_refused({"dataset.json", "\"vocab_size\" is not an integer"});
  replace_in_meta("\"vocab_size\": \"11\", ", "");
  expect_refused({"dataset.json", "has no \"vocab_size\""});
  replace_in_meta("{", "");
  expect_refused({"dataset.json", "not valid JSON"});
}

TEST_F(DamagedDataset, MetaThatLeadsElsewhere) {
  replace_in_meta("\"all\"", "\"../train/all\"");
  expect_refused({"dataset.json", "\"sets\" names '../train/all'"});
  replace_in_meta("../train/all", "");
  expect_refused({"\"sets\" names ''"});
  replace_in_meta("\"seq_len\": 81", "\"seq_len\": 1152921504606846976");
  expect_refused({"\"seq_len\" is 1152921504606846976, must be at most 16777216"});
  replace_in_meta("\"seq_len\"", "\"more\": " + std::string(9, '[') + std::string(9, ']') + ", \"seq_len\"");
  expect_refused({"nests more than 8 deep"});
}

TEST(Dataset, OptionsThatDoNotFitDirectories) {
  config::DataConfig config;
  config.subsample = 5;
  expect_error(ExitCode::usage, {"data.subsample"},
               [&] { open_dataset(fixture("dataset_sudoku/plain"), "train", config); });
  config.subsample = 0;
  config.kind = config::PuzzleFileKind::maze;
  expect_error(ExitCode::usage, {"data.kind is maze"},
               [&] { open_dataset(fixture("dataset_sudoku/plain"), "train", config); });
}

TEST(Dataset, WrittenDirectoryReadsBack) {
  const TempDir dir;
  PuzzleRows rows;
  rows.meta.vocab_size = 6;
  rows.meta.seq_len = 4;
  rows.meta.ignore_label_id = 0;
  rows.add_puzzle({3, 2, 2, 4}, {3, 5, 2, 4});
  rows.add_puzzle({4, 2, 2, 3}, {4, 5, 2, 3});
  rows.end_group();
  rows.add_puzzle({3, 4, 1, 1}, {3, 4, 1, 1});
  rows.end_group();
  write_dataset(dir.path(), "train", rows);
  const auto memory = dataset_from_rows(rows, "memory");
  const auto dataset = open_dataset(dir.path(), "train", kDefaults);
  EXPECT_EQ(dataset->num_groups(), 2);
  EXPECT_EQ(dataset->num_puzzles(), 3);
  EXPECT_EQ(dataset->puzzles_of_group(0).size(), 2);
  EXPECT_EQ(dataset->kind(), PuzzleKind::maze);  // though V = 6 could be a 4x4 Sudoku's
  for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(read(*dataset, i), read(*memory, i));
}

TEST(Dataset, EmptyRowsAreRefused) {
  expect_error(ExitCode::data, {"holds no puzzles"}, [] { dataset_from_rows({}, "memory"); });
}

}  // namespace
}  // namespace hrm::data
