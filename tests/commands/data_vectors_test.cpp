#include <sstream>

#include "data/data_support.h"
#include "hrm/commands/data.h"
#include "hrm/data/vectors.h"
#include "support/temp_dir.h"

namespace hrm::data {
namespace {

using test::TempDir;

std::string run_vectors(const VectorsCommand& command) {
  std::ostringstream out;
  run_data_vectors(command, out);
  return out.str();
}

std::vector<int64_t> labels_of(const std::filesystem::path& folder, const std::string& split) {
  const auto data = open_vectors(folder, split);
  const int64_t* labels = data->labels().data_ptr<int64_t>();
  return {labels, labels + data->rows()};
}

// Six rows, whose label is half of their feature.
VectorsCommand six_rows(const TempDir& dir) {
  write_text(dir / "six.csv", "0,0\n2,1\n4,2\n6,3\n8,4\n10,5\n");
  VectorsCommand command;
  command.csv = dir / "six.csv";
  command.out = dir / "set";
  return command;
}

TEST(DataVectors, DividesRowsInOrder) {
  const TempDir dir;
  VectorsCommand command = six_rows(dir);
  command.train_rows = 4;
  // The test rows have classes that training does not see.
  expect_error(ExitCode::data, {"six.csv (test rows)", "label of row 0 is 4", "0 to 3 only"},
               [&] { run_vectors(command); });
  EXPECT_FALSE(std::filesystem::exists(dir / "set"));
  write_text(dir / "six.csv", "0,5\n2,1\n4,2\n6,3\n8,4\n10,5\n");
  EXPECT_EQ(run_vectors(command), cat((dir / "set").string(),
                                      "\ntrain: 4 rows of [1] features, 0 to 6; 6 classes of 0 to 1 rows\n"
                                      "test: 2 rows of [1] features, 8 to 10; 6 classes of 0 to 1 rows\n"));
  EXPECT_EQ(labels_of(dir / "set", "train"), (std::vector<int64_t>{5, 1, 2, 3}));
  EXPECT_EQ(labels_of(dir / "set", "test"), (std::vector<int64_t>{4, 5}));
}

TEST(DataVectors, ShufflesBySeed) {
  const TempDir dir;
  VectorsCommand command = six_rows(dir);
  command.shuffle = true;
  std::set<std::vector<int64_t>> orders;
  for (command.seed = 0; command.seed < 5; ++command.seed) {
    run_vectors(command);
    const std::vector<int64_t> labels = labels_of(dir / "set", "train");
    EXPECT_EQ(std::set<int64_t>(labels.begin(), labels.end()).size(), 6u);
    // A row keeps its label.
    EXPECT_TRUE(at::equal(open_vectors(dir / "set", "train")->inputs().view(-1),
                          2 * open_vectors(dir / "set", "train")->labels().to(at::kFloat)));
    run_vectors(command);
    EXPECT_EQ(labels_of(dir / "set", "train"), labels);
    orders.insert(labels);
  }
  EXPECT_GE(orders.size(), 4u);
}

TEST(DataVectors, TestRowsOfAFileOfTheirOwn) {
  const TempDir dir;
  VectorsCommand command = six_rows(dir);
  command.test_csv = dir / "test.csv";
  write_text(dir / "test.csv", "x,label\n1.5,3\n");
  EXPECT_NE(run_vectors(command).find("\ntest: 1 rows of [1] features, 1.5 to 1.5; 4 classes"), std::string::npos);
  EXPECT_EQ(labels_of(dir / "set", "train").size(), 6u);
  EXPECT_EQ(labels_of(dir / "set", "test"), (std::vector<int64_t>{3}));
  write_text(dir / "test.csv", "1,1,3\n");
  expect_error(ExitCode::data, {"test.csv", "shape [2]", "[1]"}, [&] { run_vectors(command); });
  command.train_rows = 3;
  expect_error(ExitCode::usage, {"--train-rows or --test"}, [&] { run_vectors(command); });
}

TEST(DataVectors, Refusals) {
  const TempDir dir;
  VectorsCommand command = six_rows(dir);
  command.train_rows = 6;
  expect_error(ExitCode::usage, {"--train-rows 6", "no test rows of the 6"}, [&] { run_vectors(command); });
  command.train_rows = 0;
  command.csv = dir / "none.csv";
  expect_error(ExitCode::data, {"none.csv", "does not exist"}, [&] { run_vectors(command); });
  command.out.clear();
  expect_error(ExitCode::usage, {"--out"}, [&] { run_vectors(command); });
}

TEST(DataVectors, InspectShowsSplitsAndARow) {
  InspectCommand command;
  command.path = std::filesystem::path(test::source_dir()) / "data/digits";
  command.example = 1;
  std::ostringstream out;
  run_data_inspect(command, out);
  const std::string text = out.str();
  EXPECT_NE(text.find("train: 1347 rows of [64] features, 0 to 16; 10 classes of "), std::string::npos) << text;
  EXPECT_NE(text.find("test: 450 rows"), std::string::npos) << text;
  EXPECT_NE(text.find("  row 1, label 1\n"), std::string::npos) << text;
  command.example = 450;
  expect_error(ExitCode::usage, {"--example 450", "450 rows of", "test"}, [&] { run_data_inspect(command, out); });
}

}  // namespace
}  // namespace hrm::data
