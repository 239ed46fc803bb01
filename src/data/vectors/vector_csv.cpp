#include "hrm/data/vector_csv.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/base/text.h"
#include "hrm/formats/csv.h"
#include "hrm/formats/npy.h"

namespace hrm::data {
namespace {

size_t find_label(const CsvReader& csv, const std::string& label_column, const std::string& origin) {
  if (csv.has_header() && csv.has_column(label_column)) return csv.column(label_column);
  if (label_column == "first") return 0;
  if (label_column == "last") return csv.columns().size() - 1;
  require(csv.has_header(), ExitCode::data, origin, ": has no header row, so there is no column '",
          printable(label_column), "'; give --label-column first or last");
  return csv.column(label_column);
}

VectorRows read_rows(CsvReader csv, const std::string& origin, const std::string& label_column) {
  const size_t columns = csv.columns().size();
  require(columns >= 2, ExitCode::data, origin, ": has one column; a label and a feature need two");
  const size_t label_at = find_label(csv, label_column, origin);
  VectorRows rows;
  rows.features = static_cast<int64_t>(columns) - 1;
  CsvRow row;
  while (csv.next(row)) {
    for (size_t i = 0; i < columns; ++i) {
      const std::optional<double> number = csv_number(row.fields[i]);
      const auto text = [&] { return cat("'", printable_start(row.fields[i]), "' in column ", csv.columns()[i]); };
      if (!number) csv.fail_at(row.line, text() + " is not a finite number");
      if (i == label_at) {
        const bool whole = *number == std::floor(*number) && *number >= 0 && *number <= INT32_MAX;
        if (!whole) csv.fail_at(row.line, "the label " + text() + " is not a whole number from 0");
        rows.labels.push_back(static_cast<int64_t>(*number));
        continue;
      }
      if (std::abs(*number) > std::numeric_limits<float>::max()) csv.fail_at(row.line, text() + " leaves float32");
      rows.inputs.push_back(static_cast<float>(*number));
    }
  }
  require(rows.size() > 0, ExitCode::data, origin, ": holds no rows, only the header");
  return rows;
}

bool all_bytes(const std::vector<float>& values) {
  return std::all_of(values.begin(), values.end(),
                     [](float value) { return value >= 0 && value <= 255 && value == std::floor(value); });
}

template <class To, class From>
void write_as(const std::filesystem::path& path, DType dtype, const std::vector<int64_t>& shape,
              const std::vector<From>& values) {
  std::vector<To> converted(values.size());
  std::transform(values.begin(), values.end(), converted.begin(), [](From value) { return static_cast<To>(value); });
  write_npy(path, dtype, shape, std::as_bytes(std::span(converted)));
}

}  // namespace

VectorRows VectorRows::select(std::span<const int64_t> order) const {
  VectorRows result;
  result.features = features;
  result.inputs.reserve(order.size() * static_cast<size_t>(features));
  for (const int64_t row : order) {
    result.labels.push_back(labels[static_cast<size_t>(row)]);
    const auto begin = inputs.begin() + row * features;
    result.inputs.insert(result.inputs.end(), begin, begin + features);
  }
  return result;
}

VectorRows read_vector_csv(const std::filesystem::path& path, const std::string& label_column) {
  return read_rows(CsvReader(path, ExitCode::data, CsvHeader::unless_numbers), path.string(), label_column);
}

VectorRows parse_vector_csv(std::span<const std::byte> bytes, const std::string& origin,
                            const std::string& label_column) {
  return read_rows(CsvReader(bytes, origin, ExitCode::data, CsvHeader::unless_numbers), origin, label_column);
}

VectorDataset vectors_of_rows(const VectorRows& rows, const std::string& origin) {
  const at::Tensor inputs = at::empty({rows.size(), rows.features}, at::kFloat);
  const at::Tensor labels = at::empty({rows.size()}, at::kLong);
  std::copy(rows.inputs.begin(), rows.inputs.end(), inputs.data_ptr<float>());
  std::copy(rows.labels.begin(), rows.labels.end(), labels.data_ptr<int64_t>());
  return VectorDataset(inputs, labels, {rows.features}, origin);
}

void write_vectors(const std::filesystem::path& root, const std::string& split, const VectorRows& rows) {
  const std::filesystem::path folder = root / split;
  make_directories(folder);
  const std::vector<int64_t> shape{rows.size(), rows.features};
  if (all_bytes(rows.inputs)) {
    write_as<uint8_t>(folder / "inputs.npy", DType::u8, shape, rows.inputs);
  } else {
    write_npy(folder / "inputs.npy", DType::f32, shape, std::as_bytes(std::span(rows.inputs)));
  }
  if (*std::max_element(rows.labels.begin(), rows.labels.end()) <= 255) {
    write_as<uint8_t>(folder / "labels.npy", DType::u8, {rows.size()}, rows.labels);
  } else {
    write_as<int32_t>(folder / "labels.npy", DType::i32, {rows.size()}, rows.labels);
  }
}

}  // namespace hrm::data
