#include "hrm/formats/dtype.h"

#include <array>
#include <limits>

#include "hrm/base/error.h"

namespace hrm {
namespace {

struct TypeRow {
  DType dtype;
  const char* name;
  size_t size;
};

constexpr std::array<TypeRow, 13> kTypes{{
    {DType::u8, "U8", 1},
    {DType::i8, "I8", 1},
    {DType::i16, "I16", 2},
    {DType::i32, "I32", 4},
    {DType::i64, "I64", 8},
    {DType::f16, "F16", 2},
    {DType::bf16, "BF16", 2},
    {DType::f32, "F32", 4},
    {DType::f64, "F64", 8},
    {DType::boolean, "BOOL", 1},
    {DType::u16, "U16", 2},
    {DType::u32, "U32", 4},
    {DType::f8_e4m3, "F8_E4M3", 1},
}};

const TypeRow& row_of(DType dtype) {
  for (const TypeRow& row : kTypes) {
    if (row.dtype == dtype) return row;
  }
  fail(ExitCode::unexpected, "unknown element type ", static_cast<int>(dtype));
}

}  // namespace

size_t item_size(DType dtype) {
  return row_of(dtype).size;
}

const char* name(DType dtype) {
  return row_of(dtype).name;
}

std::optional<DType> dtype_from_name(std::string_view name) {
  for (const TypeRow& row : kTypes) {
    if (name == row.name) return row.dtype;
  }
  return std::nullopt;
}

std::optional<int64_t> array_bytes(DType dtype, const std::vector<int64_t>& shape) {
  int64_t product = static_cast<int64_t>(item_size(dtype));
  bool empty = false;
  for (const int64_t size : shape) {
    if (size < 0) return std::nullopt;
    if (size == 0) {
      empty = true;
    } else if (product > std::numeric_limits<int64_t>::max() / size) {
      // Refused even when another size is zero: strides would not fit.
      return std::nullopt;
    } else {
      product *= size;
    }
  }
  return empty ? 0 : product;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  return text + "]";
}

}  // namespace hrm
