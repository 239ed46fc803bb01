#include "hrm/state/tensor_bytes.h"

#include <cstring>

#include "hrm/base/error.h"

namespace hrm {

DType dtype_of(at::ScalarType type) {
  switch (type) {
    case at::kByte:
      return DType::u8;
    case at::kChar:
      return DType::i8;
    case at::kShort:
      return DType::i16;
    case at::kInt:
      return DType::i32;
    case at::kLong:
      return DType::i64;
    case at::kHalf:
      return DType::f16;
    case at::kBFloat16:
      return DType::bf16;
    case at::kFloat:
      return DType::f32;
    case at::kDouble:
      return DType::f64;
    case at::kBool:
      return DType::boolean;
    case at::kUInt16:
      return DType::u16;
    case at::kUInt32:
      return DType::u32;
    case at::kFloat8_e4m3fn:
      return DType::f8_e4m3;
    default:
      fail(ExitCode::unexpected, "tensors of type ", at::toString(type), " cannot be written to files");
  }
}

at::ScalarType scalar_type_of(DType dtype) {
  switch (dtype) {
    case DType::u8:
      return at::kByte;
    case DType::i8:
      return at::kChar;
    case DType::i16:
      return at::kShort;
    case DType::i32:
      return at::kInt;
    case DType::i64:
      return at::kLong;
    case DType::f16:
      return at::kHalf;
    case DType::bf16:
      return at::kBFloat16;
    case DType::f32:
      return at::kFloat;
    case DType::f64:
      return at::kDouble;
    case DType::boolean:
      return at::kBool;
    case DType::u16:
      return at::kUInt16;
    case DType::u32:
      return at::kUInt32;
    case DType::f8_e4m3:
      return at::kFloat8_e4m3fn;
  }
  fail(ExitCode::unexpected, "unknown element type ", static_cast<int>(dtype));
}

at::Tensor host_tensor(const at::Tensor& tensor) {
  at::Tensor host = tensor.detach().cpu().contiguous();
  // A view into a larger storage: writers that save storages would save all of it.
  if (host.storage().nbytes() != host.nbytes()) host = host.clone();
  return host;
}

std::span<const std::byte> bytes_of(const at::Tensor& host) {
  return {static_cast<const std::byte*>(host.const_data_ptr()), host.nbytes()};
}

at::Tensor tensor_from_bytes(DType dtype, const std::vector<int64_t>& shape, std::span<const std::byte> bytes) {
  at::Tensor tensor = at::empty(shape, at::TensorOptions().dtype(scalar_type_of(dtype)));
  require(tensor.nbytes() == bytes.size(), ExitCode::unexpected, bytes.size(), " bytes do not fill a tensor of shape ",
          shape_text(shape));
  if (!bytes.empty()) std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

}  // namespace hrm
