#pragma once
// Element types and views of arrays that live in files. Little-endian throughout.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace hrm {

enum class DType { u8, i8, i16, i32, i64, f16, bf16, f32, f64, boolean, u16, u32 };

// Bytes per element.
size_t item_size(DType dtype);

// The name that safetensors uses: "U8", "I8", "I16", "I32", "I64", "F16", "BF16", "F32", "F64", "BOOL", "U16",
// "U32".
const char* name(DType dtype);

// The inverse of name(); nothing for a type that is not listed there.
std::optional<DType> dtype_from_name(std::string_view name);

// Bytes that an array of this type and shape takes; nothing when a size is negative or the product leaves int64.
// A shape without sizes is a scalar: one element.
std::optional<int64_t> array_bytes(DType dtype, const std::vector<int64_t>& shape);

// "[3, 4]"
std::string shape_text(const std::vector<int64_t>& shape);

// An array in C order that aliases somebody's memory; bytes.size() == numel() * item_size(dtype). The bytes need not be
// aligned for the type: copy them, or check before a cast.
struct ArrayView {
  DType dtype = DType::u8;
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;

  int64_t numel() const { return static_cast<int64_t>(bytes.size() / item_size(dtype)); }
};

}  // namespace hrm
