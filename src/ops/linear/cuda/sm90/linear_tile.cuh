#pragma once
// The product alone by the tile kernel, for operands of 16 and of 8 bits.

#include "ops/cuda/element.h"
#include "ops/linear/cuda/sm90/tile_ops.cuh"

namespace hrm::ops::cuda::sm90 {

// Whether the tile kernel multiplies these, with rows of A and W of `bytes` per element.
inline bool fits_linear_tile(int64_t rows, int64_t width, int64_t inner, int bytes, Element element) {
  return is_hopper() && inner > 0 && inner * bytes % 16 == 0 && inner <= INT32_MAX - 128 && width > 0 &&
         width % 8 == 0 && width <= INT32_MAX - 256 && rows > 0 && rows <= (INT32_MAX - 128) / ((width + 255) / 256) &&
         element != Element::f32;
}

template <Input kInput, Input kOutput, int kColumns, class Params>
cudaError_t start_linear_tile(const Params& p, const float* x_slot, const float* weight_slot, cudaStream_t stream) {
  using Op = LinearTile<kInput, kOutput, kColumns>;
  constexpr MapElement kElement = kInput == Input::e4m3 ? MapElement::bits8 : MapElement::bits16;
  constexpr int kStages = kColumns == 256 ? 3 : 4;
  CUtensorMap map_a, map_w;
  Op op{};
  cudaError_t error = encode_rows(map_a, p.x, p.rows, p.inner, 128, kElement);
  if (error == cudaSuccess) error = encode_rows(map_w, p.weight, p.width, p.inner, kColumns, kElement);
  if (error == cudaSuccess) error = encode_rows(op.map_out, p.out, p.rows, p.width, 16);
  if (error != cudaSuccess) return error;
  op.x_slot = x_slot;
  op.weight_slot = weight_slot;
  op.width = static_cast<int>(p.width);
  return start_tiles<kStages>(map_a, map_w, p.rows, p.inner, (p.width + kColumns - 1) / kColumns, 0, op, stream);
}

// Slots only for e4m3. Every multiprocessor works on a tile at a time, and in the last round some have none: tiles of
// 192 columns cost a little more for each column, but may need fewer columns in all rounds together. Each element is
// summed in the same order.
template <Input kInput, Input kOutput, class Params>
cudaError_t start_linear_tile(const Params& p, const float* x_slot, const float* weight_slot, cudaStream_t stream) {
  const auto columns_in_turn = [&](int64_t columns) {
    const int64_t tiles = (p.rows + 127) / 128 * ((p.width + columns - 1) / columns), at_once = multiprocessors();
    return (tiles + at_once - 1) / at_once * columns;
  };
  return columns_in_turn(192) * 100 < columns_in_turn(256) * 97
             ? start_linear_tile<kInput, kOutput, 192>(p, x_slot, weight_slot, stream)
             : start_linear_tile<kInput, kOutput, 256>(p, x_slot, weight_slot, stream);
}

}  // namespace hrm::ops::cuda::sm90
