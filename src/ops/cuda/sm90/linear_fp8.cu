#include "ops/cuda/sm90/linear_fp8.h"

#include "ops/cuda/sm90/linear_tile.cuh"

namespace hrm::ops::cuda::sm90 {
namespace {

constexpr int kStages = 3;
constexpr int kColumns = 128;  // gates of a slice; its ups are as many

template <Input kRounded>
cudaError_t start_swiglu(const LinearSwigluFp8& p, cudaStream_t stream) {
  CUtensorMap map_a, map_w;
  cudaError_t error = encode_rows(map_a, p.x, p.rows, p.inner, 128, MapElement::bits8);
  if (error == cudaSuccess) {
    error = encode_permuted_rows(map_w, p.weight, 2 * p.width, p.inner, kColumns / 32, MapElement::bits8);
  }
  if (error != cudaSuccess) return error;
  LinearSwigluFp8Tile<kRounded> op{};
  op.x_slot = p.x_slot;
  op.weight_slot = p.weight_slot;
  op.act_slot = p.act_slot;
  op.act = p.act;
  op.rows = p.rows;
  op.width = p.width;
  return start_tiles<kStages>(map_a, map_w, p.rows, p.inner, p.width / kColumns, p.width / 32, op, stream);
}

}  // namespace

bool fits(const LinearFp8& p) {
  return fits_linear_tile(p.rows, p.width, p.inner, 1, p.element);
}

cudaError_t launch(const LinearFp8& p, cudaStream_t stream) {
  if (!fits(p)) return cudaErrorInvalidValue;
  if (p.element == Element::f16) {
    return start_linear_tile<Input::e4m3, Input::f16>(p, p.x_slot, p.weight_slot, stream);
  }
  return start_linear_tile<Input::e4m3, Input::bf16>(p, p.x_slot, p.weight_slot, stream);
}

bool fits(const LinearSwigluFp8& p) {
  return p.width % kColumns == 0 && fits_linear_tile(p.rows, 2 * p.width, p.inner, 1, p.element);
}

cudaError_t launch(const LinearSwigluFp8& p, cudaStream_t stream) {
  if (!fits(p)) return cudaErrorInvalidValue;
  return p.element == Element::f16 ? start_swiglu<Input::f16>(p, stream) : start_swiglu<Input::bf16>(p, stream);
}

}  // namespace hrm::ops::cuda::sm90
