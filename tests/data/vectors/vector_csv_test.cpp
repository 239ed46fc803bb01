#include "hrm/data/vector_csv.h"

#include "data/vectors/vectors_support.h"
#include "hrm/base/file.h"
#include "support/temp_dir.h"

namespace hrm::data {
namespace {

using test::TempDir;

VectorRows parse(const std::string& text, const std::string& label_column = "last") {
  return parse_vector_csv(as_bytes(text), "x.csv", label_column);
}

TEST(VectorCsv, LabelsAreLastFirstOrNamed) {
  const std::string numbers = "1,2.5,0\n-3, 4e1 ,2\n";
  const VectorRows last = parse(numbers);
  EXPECT_EQ(last.features, 2);
  EXPECT_EQ(last.inputs, (std::vector<float>{1, 2.5, -3, 40}));
  EXPECT_EQ(last.labels, (std::vector<int64_t>{0, 2}));
  const VectorRows first = parse("7,2.5,0\n3,4,2.0\n", "first");
  EXPECT_EQ(first.labels, (std::vector<int64_t>{7, 3}));
  EXPECT_EQ(first.inputs, (std::vector<float>{2.5, 0, 4, 2}));
  const VectorRows named = parse("a,species,b\n1,5,2\n", "species");
  EXPECT_EQ(named.labels, (std::vector<int64_t>{5}));
  EXPECT_EQ(named.inputs, (std::vector<float>{1, 2}));
  // A header also where last and first are meant; its own column of that name comes first.
  EXPECT_EQ(parse("a,b\n1,5\n").labels, (std::vector<int64_t>{5}));
  EXPECT_EQ(parse("last,b\n1,5\n").labels, (std::vector<int64_t>{1}));
}

TEST(VectorCsv, ErrorsNameTheLine) {
  const auto expect_data = [](const std::string& text, const std::vector<std::string>& parts,
                              const std::string& label_column = "last") {
    expect_error(ExitCode::data, parts, [&] { parse(text, label_column); });
  };
  expect_data("1,2\n3,x\n", {"x.csv:2: ", "'x' in column 2", "not a finite number"});
  expect_data("1,2\nnan,3\n", {"x.csv:2: ", "'nan' in column 1", "not a finite number"});
  expect_data("1,2\n,3\n", {"x.csv:2: ", "'' in column 1"});
  expect_data("1,2\n1e39,3\n", {"x.csv:2: ", "'1e39'", "leaves float32"});
  expect_data("1,2\n1,-3\n", {"x.csv:2: ", "label '-3'", "whole number from 0"});
  expect_data("1,2\n1,1.5\n", {"x.csv:2: ", "label '1.5'", "whole number from 0"});
  expect_data("1,2\n1\n", {"x.csv:2: ", "1 fields", "first row has 2"});
  expect_data("1\n2\n", {"x.csv", "one column"});
  expect_data("a,b\n", {"x.csv", "holds no rows"});
  expect_data("", {"x.csv", "empty"});
  expect_data("1,2\n", {"x.csv", "no header row", "'c'", "--label-column"}, "c");
  expect_data("a,b\n1,2\n", {"x.csv", "no column 'c'", "a, b"}, "c");
}

TEST(VectorCsv, WritesTheSmallestType) {
  const TempDir dir;
  const auto dtypes = [&](const VectorRows& rows) {
    write_vectors(dir.path(), "train", rows);
    const auto data = open_vectors(dir.path(), "train");
    EXPECT_EQ(std::vector<float>(data->inputs().data_ptr<float>(), data->inputs().data_ptr<float>() + 4), rows.inputs);
    EXPECT_EQ(std::vector<int64_t>(data->labels().data_ptr<int64_t>(), data->labels().data_ptr<int64_t>() + 2),
              rows.labels);
    return std::pair(NpyFile(dir / "train/inputs.npy").array().dtype, NpyFile(dir / "train/labels.npy").array().dtype);
  };
  EXPECT_EQ(dtypes({2, {0, 255, 1, 2}, {0, 255}}), std::pair(DType::u8, DType::u8));
  EXPECT_EQ(dtypes({2, {0, 256, 1, 2}, {0, 256}}), std::pair(DType::f32, DType::i32));
  EXPECT_EQ(dtypes({2, {0, 0.5, 1, 2}, {0, 1}}), std::pair(DType::f32, DType::u8));
  EXPECT_EQ(dtypes({2, {0, -1, 1, 2}, {0, 1}}), std::pair(DType::f32, DType::u8));
}

}  // namespace
}  // namespace hrm::data
