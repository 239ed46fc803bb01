// Experts with SwiGLU: the kernels of ops::linear_swiglu, in which each 128 rows have a weight of their own.

#include "ops/linear/cuda/sm90/swiglu_gradient.cuh"
#include "ops/linear/cuda/sm90/swiglu_registers.cuh"
#include "ops/linear/cuda/sm90/tile_ops.cuh"
#include "ops/moe/cuda/sm90/moe_experts.h"

namespace hrm::ops::cuda::sm90 {
namespace {

bool fits(const ExpertTiles& tiles, int64_t width, int64_t inner, int64_t columns, Element element) {
  return is_hopper() && element != Element::f32 && tiles.rows > 0 && tiles.rows % 128 == 0 && tiles.rows <= INT32_MAX &&
         width > 0 && width % columns == 0 && inner > 0 && inner % 64 == 0 &&
         tiles.rows / 128 * (width / 128) <= INT32_MAX && tiles.experts * 2 * width <= INT32_MAX - 256 &&
         tiles.experts * inner <= INT32_MAX - 256;
}

TileGroups groups_of(const ExpertTiles& tiles, int64_t weight_rows) {
  return {tiles.tile_experts, tiles.starts + tiles.experts, static_cast<int>(weight_rows)};
}

// Gates and ups that are kept are most of what is written, which the warps beside the product do.
template <Input kInput>
cudaError_t start_keeping(const ExpertSwiglu& p, cudaStream_t stream) {
  constexpr int kStages = 3;
  constexpr int kColumns = 128;  // gates of a slice; its ups are as many
  CUtensorMap map_a, map_w;
  cudaError_t error = encode_rows(map_a, p.x, p.rows, p.inner, 128);
  if (error == cudaSuccess) {
    error = encode_permuted_rows(map_w, p.weight, p.tiles.experts * 2 * p.width, p.inner, kColumns / 32);
  }
  if (error != cudaSuccess) return error;
  LinearSwigluTile<kInput, /*kSave=*/true, /*kGroups=*/true> op{};
  op.act = p.act;
  op.gate_up = p.gate_up;
  op.rows = p.rows;
  op.width = p.width;
  return start_tiles<kStages>(map_a, map_w, p.rows, p.inner, p.width / kColumns, p.width / 32, op, stream,
                              groups_of(p.tiles, 2 * p.width));
}

template <Input kInput>
cudaError_t start_forward(const ExpertSwiglu& p, cudaStream_t stream) {
  if (p.gate_up != nullptr) return start_keeping<kInput>(p, stream);
  return start_swiglu_registers<kInput, kInput, 4, 2, /*kGrouped=*/true>(
      p, nullptr, nullptr, nullptr, stream, groups_of(p.tiles, 2 * p.width), p.tiles.experts);
}

template <Input kInput>
cudaError_t start_backward(const ExpertSwigluBackward& p, cudaStream_t stream) {
  return start_swiglu_gradient<kInput, 3, 5, /*kGrouped=*/true>(p, stream, groups_of(p.tiles, p.inner),
                                                                p.tiles.experts);
}

}  // namespace

bool fits(const ExpertSwiglu& p) {
  return fits(p.tiles, p.width, p.inner, 128, p.element);
}
bool fits(const ExpertSwigluBackward& p) {
  return fits(p.tiles, p.width, p.inner, 256, p.element);
}

cudaError_t launch(const ExpertSwiglu& p, cudaStream_t stream) {
  if (!fits(p)) return cudaErrorInvalidValue;
  return p.element == Element::f16 ? start_forward<Input::f16>(p, stream) : start_forward<Input::bf16>(p, stream);
}

cudaError_t launch(const ExpertSwigluBackward& p, cudaStream_t stream) {
  if (!fits(p)) return cudaErrorInvalidValue;
  return p.element == Element::f16 ? start_backward<Input::f16>(p, stream) : start_backward<Input::bf16>(p, stream);
}

}  // namespace hrm::ops::cuda::sm90
