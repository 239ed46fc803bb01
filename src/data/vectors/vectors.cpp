#include "hrm/data/vectors.h"

#include <ATen/ATen.h>

#include <array>
#include <cmath>
#include <cstring>
#include <span>

#include "data/other_data.h"
#include "hrm/base/error.h"
#include "hrm/base/hash.h"
#include "hrm/formats/npy.h"

namespace hrm::data {
namespace {

namespace fs = std::filesystem;

// A damaged label must not become the width of a model.
constexpr int64_t kMostClasses = 65'536;

// Calls convert(T{}) with the element type of a file.
template <class F>
void with_type(DType dtype, const std::string& origin, bool whole, const F& convert) {
  switch (dtype) {
    case DType::u8:
      return convert(uint8_t{});
    case DType::i8:
      return convert(int8_t{});
    case DType::u16:
      return convert(uint16_t{});
    case DType::i16:
      return convert(int16_t{});
    case DType::u32:
      return convert(uint32_t{});
    case DType::i32:
      return convert(int32_t{});
    case DType::i64:
      return convert(int64_t{});
    case DType::f32:
      if (!whole) return convert(float{});
      break;
    case DType::f64:
      if (!whole) return convert(double{});
      break;
    default:
      break;
  }
  fail(ExitCode::data, origin, ": has dtype ", name(dtype), ", must be ", whole ? "" : "F32, F64 or ",
       "a type of whole numbers: U8, I8, U16, I16, U32, I32 or I64");
}

// Bytes of a file may be unaligned.
template <class T>
T element(const std::byte* bytes, int64_t index) {
  T value;
  std::memcpy(&value, bytes + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

template <class To>
at::Tensor converted(const NpyFile& file, at::ScalarType dtype) {
  const ArrayView& array = file.array();
  const at::Tensor result = at::empty({array.numel()}, dtype);
  To* out = result.data_ptr<To>();
  with_type(array.dtype, file.path().string(), std::is_integral_v<To>, [&]<class T>(T) {
    for (int64_t i = 0; i < array.numel(); ++i) out[i] = static_cast<To>(element<T>(array.bytes.data(), i));
  });
  return result;
}

}  // namespace

VectorDataset::VectorDataset(at::Tensor inputs, at::Tensor labels, std::vector<int64_t> row_shape, std::string origin)
    : inputs_(std::move(inputs)),
      labels_(std::move(labels)),
      row_shape_(std::move(row_shape)),
      origin_(std::move(origin)) {
  require(rows() > 0, ExitCode::data, origin_, ": holds no rows");
  require(features() > 0, ExitCode::data, origin_, ": its rows have no features");
  require(inputs_.size(0) == rows(), ExitCode::data, origin_, ": has ", inputs_.size(0), " rows of inputs, but ",
          rows(), " labels");
  const float* values = inputs_.data_ptr<float>();
  for (int64_t i = 0; i < inputs_.numel(); ++i) {
    require(std::isfinite(values[i]), ExitCode::data, origin_, ": the input in row ", i / features(), ", feature ",
            i % features(), " is not a finite number of float32");
  }
  const int64_t* label = labels_.data_ptr<int64_t>();
  for (int64_t i = 0; i < rows(); ++i) {
    require(label[i] >= 0 && label[i] < kMostClasses, ExitCode::data, origin_, ": the label of row ", i, " is ",
            label[i], ", must be within 0 to ", kMostClasses - 1);
    classes_ = std::max(classes_, label[i] + 1);
  }
}

std::string VectorDataset::digest() const {
  Hasher hasher;
  const std::array<int64_t, 3> sizes{rows(), features(), classes()};
  hasher.update(std::as_bytes(std::span(sizes)));
  hasher.update(std::as_bytes(std::span(row_shape_)));
  hasher.update(std::as_bytes(std::span(inputs_.data_ptr<float>(), static_cast<size_t>(inputs_.numel()))));
  hasher.update(std::as_bytes(std::span(labels_.data_ptr<int64_t>(), static_cast<size_t>(rows()))));
  return hasher.hex();
}

bool is_vector_folder(const fs::path& root) {
  std::error_code ignored;
  return fs::exists(root / "train" / "inputs.npy", ignored) || fs::exists(root / "test" / "inputs.npy", ignored);
}

std::shared_ptr<const VectorDataset> open_vectors(const fs::path& root, const std::string& split) {
  const fs::path folder = root / split;
  std::error_code ignored;
  require(fs::is_directory(root, ignored), ExitCode::data, root.string(),
          fs::exists(root, ignored) ? ": is a file, not a folder of vectors" : ": no such folder of vectors",
          "; hrm_train data vectors makes one of a CSV file", other_data(root));
  require(fs::is_directory(folder, ignored), ExitCode::data, root.string(), ": has no folder \"", split,
          "\", so it is not a data set with a ", split, " split");
  const NpyFile inputs(folder / "inputs.npy"), labels(folder / "labels.npy");
  const ArrayView &in = inputs.array(), &out = labels.array();
  require(in.shape.size() >= 2, ExitCode::data, inputs.path().string(), ": has shape ", shape_text(in.shape),
          ", must be [rows, features]");
  require(out.shape.size() == 1, ExitCode::data, labels.path().string(), ": has shape ", shape_text(out.shape),
          ", must be [rows]");
  require(in.shape[0] == out.shape[0], ExitCode::data, labels.path().string(), ": has ", out.shape[0],
          " rows, but the inputs have ", in.shape[0]);
  require(in.shape[0] > 0, ExitCode::data, folder.string(), ": holds no rows");
  const at::Tensor values = converted<float>(inputs, at::kFloat);
  return std::make_shared<VectorDataset>(values.view({in.shape[0], in.numel() / in.shape[0]}),
                                         converted<int64_t>(labels, at::kLong),
                                         std::vector<int64_t>(in.shape.begin() + 1, in.shape.end()), folder.string());
}

void check_same_vectors(const VectorDataset& train, const VectorDataset& test) {
  require(train.row_shape() == test.row_shape(), ExitCode::data, test.origin(), ": its rows have shape ",
          shape_text(test.row_shape()), ", but those of ", train.origin(), " have ", shape_text(train.row_shape()));
  if (test.classes() <= train.classes()) return;
  const int64_t* label = test.labels().data_ptr<int64_t>();
  int64_t row = 0;
  while (label[row] < train.classes()) ++row;
  fail(ExitCode::data, test.origin(), ": the label of row ", row, " is ", label[row], ", but ", train.origin(),
       " has labels 0 to ", train.classes() - 1, " only");
}

VectorScaling vector_scaling(const VectorDataset& train) {
  const int64_t rows = train.rows(), features = train.features();
  const float* inputs = train.inputs().data_ptr<float>();
  std::vector<double> mean(static_cast<size_t>(features), 0);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < features; ++i) mean[i] += inputs[row * features + i];
  }
  const VectorScaling scaling{at::empty({features}, at::kFloat), at::empty({}, at::kFloat)};
  for (int64_t i = 0; i < features; ++i) {
    mean[i] /= static_cast<double>(rows);
    scaling.mean.data_ptr<float>()[i] = static_cast<float>(mean[i]);
  }
  double squares = 0;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < features; ++i) {
      const double centred = inputs[row * features + i] - mean[i];
      squares += centred * centred;
    }
  }
  const auto deviation = static_cast<float>(std::sqrt(squares / static_cast<double>(rows * features)));
  require(
      deviation > 0 && std::isfinite(deviation), ExitCode::data, train.origin(),
      deviation > 0 ? ": its inputs are too large to be scaled" : ": all rows are equal, so nothing can be learned");
  scaling.deviation.fill_(deviation);
  return scaling;
}

at::Tensor scaled(const at::Tensor& inputs, const VectorScaling& scaling) {
  return (inputs - scaling.mean).div_(scaling.deviation);
}

}  // namespace hrm::data
