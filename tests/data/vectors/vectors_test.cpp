#include "hrm/data/vectors.h"

#include <cmath>
#include <limits>
#include <set>

#include "data/vectors/vectors_support.h"
#include "support/temp_dir.h"

namespace hrm::data {
namespace {

using test::TempDir;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::filesystem::path digits() {
  return std::filesystem::path(test::source_dir()) / "data/digits";
}

template <class T>
void expect_reads(DType dtype, bool is_label) {
  const TempDir dir;
  const std::vector<T> values{1, 0, 2, 3, 7, 4};
  if (is_label) {
    write_array<float>(dir / "train/inputs.npy", DType::f32, {6, 1}, {0, 1, 2, 3, 4, 5});
    write_array<T>(dir / "train/labels.npy", dtype, {6}, values);
    const auto data = open_vectors(dir.path(), "train");
    EXPECT_TRUE(at::equal(data->labels(), at::tensor({1, 0, 2, 3, 7, 4}, at::kLong))) << name(dtype);
    EXPECT_EQ(data->classes(), 8);
  } else {
    write_array<T>(dir / "train/inputs.npy", dtype, {2, 3}, values);
    write_array<uint8_t>(dir / "train/labels.npy", DType::u8, {2}, {0, 1});
    const auto data = open_vectors(dir.path(), "train");
    EXPECT_TRUE(at::equal(data->inputs(), at::tensor({1.f, 0.f, 2.f, 3.f, 7.f, 4.f}).view({2, 3}))) << name(dtype);
  }
}

TEST(Vectors, ReadsAllTypes) {
  for (const bool is_label : {false, true}) {
    expect_reads<uint8_t>(DType::u8, is_label);
    expect_reads<int8_t>(DType::i8, is_label);
    expect_reads<uint16_t>(DType::u16, is_label);
    expect_reads<int16_t>(DType::i16, is_label);
    expect_reads<uint32_t>(DType::u32, is_label);
    expect_reads<int32_t>(DType::i32, is_label);
    expect_reads<int64_t>(DType::i64, is_label);
  }
  expect_reads<float>(DType::f32, false);
  expect_reads<double>(DType::f64, false);
}

TEST(Vectors, RowsOfMoreDimensionsAreFlattened) {
  const TempDir dir;
  std::vector<float> values(2 * 3 * 4);
  std::iota(values.begin(), values.end(), 0.f);
  write_array(dir / "train/inputs.npy", DType::f32, {2, 3, 4}, values);
  write_array<uint8_t>(dir / "train/labels.npy", DType::u8, {2}, {1, 0});
  const auto data = open_vectors(dir.path(), "train");
  EXPECT_EQ(data->features(), 12);
  EXPECT_EQ(data->row_shape(), (std::vector<int64_t>{3, 4}));
  EXPECT_TRUE(at::equal(data->inputs()[1], at::arange(12, 24, at::kFloat)));
  EXPECT_TRUE(is_vector_folder(dir.path()));
  EXPECT_FALSE(is_vector_folder(dir / "train"));
}

TEST(Vectors, RefusesMalformedFolders) {
  const TempDir dir;
  const auto expect_data = [&](const std::vector<std::string>& parts) {
    expect_error(ExitCode::data, parts, [&] { open_vectors(dir / "set", "train"); });
  };
  const auto inputs = dir / "set/train/inputs.npy", labels = dir / "set/train/labels.npy";
  const auto good_labels = [&] { write_array<uint8_t>(labels, DType::u8, {2}, {0, 1}); };
  expect_data({"set", "no such folder", "hrm_train data vectors"});
  std::filesystem::create_directories(dir / "set/test");
  expect_data({"set", "no folder \"train\""});
  good_labels();
  expect_data({"inputs.npy", "does not exist"});
  write_array<float>(inputs, DType::f32, {4}, {1, 2, 3, 4});
  expect_data({"inputs.npy", "shape [4]", "[rows, features]"});
  write_array<float>(inputs, DType::f32, {4, 1}, {1, 2, 3, 4});
  expect_data({"labels.npy", "has 2 rows", "inputs have 4"});
  write_array<float>(inputs, DType::f32, {2, 0}, {});
  expect_data({"train", "no features"});
  write_array<uint16_t>(inputs, DType::f16, {2, 1}, {0, 0});
  expect_data({"inputs.npy", "dtype F16"});
  write_array<float>(inputs, DType::f32, {2, 2}, {1, 2, 3, std::nanf("")});
  expect_data({"train", "row 1, feature 1", "not a finite number"});
  write_array<float>(inputs, DType::f32, {2, 2}, {1, kInfinity, 3, 4});
  expect_data({"row 0, feature 1", "not a finite number"});
  write_array<double>(inputs, DType::f64, {2, 2}, {1, 2, 3, 1e300});
  expect_data({"row 1, feature 1", "float32"});
  write_array<float>(inputs, DType::f32, {2, 2}, {1, 2, 3, 4});
  write_array<float>(labels, DType::f32, {2}, {0, 1});
  expect_data({"labels.npy", "dtype F32", "whole numbers"});
  write_array<int32_t>(labels, DType::i32, {2}, {0, -1});
  expect_data({"label of row 1 is -1", "within 0 to 65535"});
  write_array<int32_t>(labels, DType::i32, {2}, {1 << 20, 0});
  expect_data({"label of row 0 is 1048576"});
  write_array<int32_t>(labels, DType::i32, {2, 1}, {0, 1});
  expect_data({"labels.npy", "shape [2, 1]", "[rows]"});
  write_array<float>(inputs, DType::f32, {0, 2}, {});
  write_array<uint8_t>(labels, DType::u8, {0}, {});
  expect_data({"holds no rows"});
  good_labels();
  write_array<float>(inputs, DType::f32, {2, 2}, {1, 2, 3, 4});
  EXPECT_EQ(open_vectors(dir / "set", "train")->rows(), 2);
}

TEST(Vectors, TestSetMustFitTheTrainingSet) {
  const VectorDataset train = counted_vectors(2), test = counted_vectors(7);
  check_same_vectors(test, train);
  expect_error(ExitCode::data, {"label of row 2 is 2", "0 to 1 only"}, [&] { check_same_vectors(train, test); });
  const VectorDataset wide(at::zeros({1, 3}), at::zeros({1}, at::kLong), {3}, "wide");
  expect_error(ExitCode::data, {"wide", "shape [3]", "[2]"}, [&] { check_same_vectors(train, wide); });
}

TEST(Vectors, ScalingIsThatOfTheTrainingRows) {
  const auto train = open_vectors(digits(), "train"), test = open_vectors(digits(), "test");
  const VectorScaling scaling = vector_scaling(*train);
  const at::Tensor wide = train->inputs().to(at::kDouble), centred = wide - wide.mean(0);
  EXPECT_TRUE(at::allclose(scaling.mean.to(at::kDouble), wide.mean(0), 1e-6, 1e-7));
  EXPECT_NEAR(scaling.deviation.item<double>(), centred.square().mean().sqrt().item<double>(), 1e-6);
  const at::Tensor inputs = scaled(train->inputs(), scaling);
  EXPECT_NEAR(inputs.square().mean().item<float>(), 1, 1e-4);
  EXPECT_LT(inputs.mean(0).abs().max().item<float>(), 1e-5);
  // The test rows are moved by the numbers of the training rows.
  EXPECT_TRUE(
      at::allclose(scaled(test->inputs(), scaling) * scaling.deviation + scaling.mean, test->inputs(), 0, 1e-5));
  EXPECT_GT(scaled(test->inputs(), scaling).mean(0).abs().max().item<float>(), 0.05);
  const VectorDataset same(at::ones({4, 2}), at::zeros({4}, at::kLong), {2}, "same");
  expect_error(ExitCode::data, {"same", "all rows are equal"}, [&] { vector_scaling(same); });
}

// data/digits/README.md states these numbers.
TEST(Vectors, ShippedDigits) {
  const auto train = open_vectors(digits(), "train"), test = open_vectors(digits(), "test");
  EXPECT_EQ(train->rows(), 1347);
  EXPECT_EQ(test->rows(), 450);
  for (const auto& data : {train, test}) {
    EXPECT_EQ(data->features(), 64);
    EXPECT_EQ(data->classes(), 10);
    EXPECT_EQ(data->inputs().min().item<float>(), 0);
    EXPECT_EQ(data->inputs().max().item<float>(), 16);
  }
  check_same_vectors(*train, *test);
}

TEST(Vectors, DigestSeesEveryValue) {
  const auto digest = [](const at::Tensor& inputs, const at::Tensor& labels, std::vector<int64_t> shape) {
    return VectorDataset(inputs, labels, std::move(shape), "x").digest();
  };
  const at::Tensor inputs = at::arange(12, at::kFloat).view({3, 4}), labels = at::tensor({0, 1, 2}, at::kLong);
  const std::string base = digest(inputs, labels, {4});
  EXPECT_EQ(base, digest(inputs.clone(), labels.clone(), {4}));
  const at::Tensor other_inputs = inputs.clone(), other_labels = at::tensor({2, 1, 0}, at::kLong);
  other_inputs[2][3] = 11.5;
  std::set<std::string> all{base, digest(other_inputs, labels, {4}), digest(inputs, other_labels, {4}),
                            digest(inputs, labels, {2, 2})};
  EXPECT_EQ(all.size(), 4u);
}

}  // namespace
}  // namespace hrm::data
