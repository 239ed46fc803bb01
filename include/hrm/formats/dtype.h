#pragma once
// Element types and views of arrays in files. All formats are little-endian.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace hrm {

enum class DType { u8, i8, i16, i32, i64, f16, bf16, f32, f64, boolean, u16, u32, f8_e4m3 };

// Bytes per element.
size_t item_size(DType dtype);

// The type's name in safetensors: "U8", "I8", "I16", "I32", "I64", "F16", "BF16", "F32", "F64", "BOOL", "U16", "U32",
// "F8_E4M3".
const char* name(DType dtype);

// The inverse of name(); nullopt for any other type.
std::optional<DType> dtype_from_name(std::string_view name);

// Bytes of an array with this type and shape; nullopt if a size is negative or the product overflows int64. An empty
// shape is a scalar: one element.
std::optional<int64_t> array_bytes(DType dtype, const std::vector<int64_t>& shape);

// "[3, 4]"
std::string shape_text(const std::vector<int64_t>& shape);

// A non-owning view of an array in C order; bytes.size() == numel() * item_size(dtype). The bytes may be unaligned for
// the type: copy them, or check the alignment before a cast.
struct ArrayView {
  DType dtype = DType::u8;
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;

  int64_t numel() const { return static_cast<int64_t>(bytes.size() / item_size(dtype)); }
};

}  // namespace hrm
