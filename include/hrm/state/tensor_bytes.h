#pragma once
// Between tensors and the plain bytes that files hold.

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <span>
#include <vector>

#include "hrm/formats/dtype.h"

namespace hrm {

// Throws Error(unexpected) for types that files do not hold (complex, float8, quantised).
DType dtype_of(at::ScalarType type);
at::ScalarType scalar_type_of(DType dtype);

// The tensor on the CPU, detached, in C order, in a storage of exactly its size. Copies only where it must: the result
// may share memory with `tensor`. Waits for the device.
at::Tensor host_tensor(const at::Tensor& tensor);

// The memory of a tensor that host_tensor gave; lives as long as the tensor.
std::span<const std::byte> bytes_of(const at::Tensor& host);

// A new CPU tensor with a copy of these bytes (C order).
at::Tensor tensor_from_bytes(DType dtype, const std::vector<int64_t>& shape, std::span<const std::byte> bytes);

}  // namespace hrm
