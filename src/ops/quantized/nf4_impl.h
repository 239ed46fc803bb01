#pragma once
// What the files of NF4 share.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <tuple>

#include "hrm/ops/nf4.h"
#include "ops/common/optional_tensor.h"

namespace hrm::ops {

using Nf4Parts = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;  // in the order of Nf4Tensor

void check_nf4_quantize(const at::Tensor& weight);
void check_nf4_dequantize(const at::Tensor& out, const Nf4Tensor& from);

void check_linear_nf4(const at::Tensor& x, const Nf4Tensor& weight, const at::Tensor& workspace,
                      const OptionalTensor& residual);

// Dequantises into the workspace and multiplies, on every device.
at::Tensor linear_nf4_dequantized(const at::Tensor& x, const Nf4Tensor& weight, const at::Tensor& workspace,
                                  const OptionalTensor& residual);

inline int64_t nf4_blocks(int64_t elements) {
  return (elements + kNf4Block - 1) / kNf4Block;
}

namespace reference {

Nf4Tensor nf4_quantize(const at::Tensor& weight, bool double_quantized);
void nf4_dequantize_(const at::Tensor& out, const Nf4Tensor& from);

// The second half of double quantisation: float32 magnitudes in `quantized.absmax` become codes, scales and offset.
void nf4_quantize_absmax(Nf4Tensor& quantized);

}  // namespace reference
}  // namespace hrm::ops
