#include "ops/linear/cuda/sm90/linear_epilogues.h"
#include "ops/linear/cuda/sm90/linear_tile.cuh"

namespace hrm::ops::cuda::sm90 {
namespace {

template <Input kInput>
cudaError_t start_rotated(const LinearRotated& p, cudaStream_t stream) {
  constexpr int kStages = 3;
  CUtensorMap map_a, map_w;
  LinearRotatedTile<kInput> op{};
  cudaError_t error = encode_rows(map_a, p.x, p.rows, p.inner, 128);
  if (error == cudaSuccess) error = encode_rows(map_w, p.weight, p.width, p.inner, 256);
  if (error != cudaSuccess) return error;
  op.out = p.out;
  op.cos = p.cos;
  op.sin = p.sin;
  op.rows = p.rows;
  op.width = static_cast<int>(p.width);
  op.turned = static_cast<int>(p.turned);
  op.table_rows = static_cast<uint32_t>(p.table_rows);
  return start_tiles<kStages>(map_a, map_w, p.rows, p.inner, (p.width + 255) / 256, 0, op, stream);
}

}  // namespace

bool fits(const LinearForward& p) {
  return fits_linear_tile(p.rows, p.width, p.inner, 2, p.element);
}

cudaError_t launch(const LinearForward& p, cudaStream_t stream) {
  if (!fits(p)) return cudaErrorInvalidValue;
  if (p.element == Element::f16) return start_linear_tile<Input::f16, Input::f16>(p, nullptr, nullptr, stream);
  return start_linear_tile<Input::bf16, Input::bf16>(p, nullptr, nullptr, stream);
}

bool fills_the_chip(int64_t rows, int64_t width) {
  const int64_t tiles = (rows + 127) / 128 * (width / 256), at_once = multiprocessors();
  const int64_t rounds = (tiles + at_once - 1) / at_once;
  return tiles * 5 >= rounds * at_once * 4;
}

bool fits(const LinearRotated& p) {
  return fits_linear_tile(p.rows, p.width, p.inner, 2, p.element) && p.rows <= INT32_MAX - 128 && p.width % 64 == 0 &&
         p.turned % 64 == 0 && p.turned <= p.width && p.table_rows > 0 && p.table_rows <= INT32_MAX / 32;
}

cudaError_t launch(const LinearRotated& p, cudaStream_t stream) {
  if (!fits(p)) return cudaErrorInvalidValue;
  return p.element == Element::f16 ? start_rotated<Input::f16>(p, stream) : start_rotated<Input::bf16>(p, stream);
}

}  // namespace hrm::ops::cuda::sm90
