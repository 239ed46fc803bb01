#include "ops/cuda/sm90/linear_swiglu.cuh"

#include <algorithm>

#include "ops/cuda/sm90/launch.cuh"
#include "ops/cuda/sm90/linear_epilogues.h"
#include "ops/cuda/sm90/tile_ops.cuh"

namespace hrm::ops::cuda::sm90 {
namespace {

constexpr int kColumns = 64;  // gates of a slice; its ups are as many
constexpr int kStages = 4;
constexpr int kConsumers = 3;

bool slices_fit(const LinearSwigluForward& p) {
  return p.width % kColumns == 0 && p.width > 0 && p.inner <= 64 * kStationaryBlocksK;
}

bool tiles_fit(const LinearSwigluForward& p) {
  return p.width % 128 == 0 && p.width > 0;
}

template <Input kInput, bool kSave>
cudaError_t start_swiglu(const LinearSwigluForward& p, cudaStream_t stream) {
  using Op = LinearSwiglu<kInput, kColumns, kSave>;
  CUtensorMap map_a, map_w;
  cudaError_t error = encode_rows(map_a, p.x, p.rows, p.inner, 64);
  if (error == cudaSuccess) error = encode_permuted_rows(map_w, p.weight, 2 * p.width, p.inner, kColumns / 32);
  if (error != cudaSuccess) return error;
  Op op{};
  op.act = p.act;
  op.gate_up = p.gate_up;
  op.rows = p.rows;
  op.width = p.width;
  StationaryShape shape{};
  shape.rows = p.rows;
  shape.blocks_k = static_cast<int>(p.inner / 64);
  shape.slices = static_cast<int>(p.width / kColumns);
  shape.groups = static_cast<int>(std::min<int64_t>((p.rows + 63) / 64, std::max(1, multiprocessors() / shape.slices)));
  shape.box_distance = static_cast<int>(p.width / 32);
  return start(stationary_kernel<Op, kStages, kConsumers, 1>, shape.slices * shape.groups, 128 * (kConsumers + 1),
               stationary_shared_bytes<Op>(shape.blocks_k, kStages, kConsumers), 1, stream, map_a, map_w, shape, op);
}

// Tiles write whole lines of memory: better where gate and up are written, too, and for a large K.
template <Input kInput, bool kSave>
cudaError_t start_tiles(const LinearSwigluForward& p, cudaStream_t stream) {
  using Op = TileSwiglu<kInput, kSave>;
  constexpr int kTileStages = 3;
  CUtensorMap map_a, map_w;
  cudaError_t error = encode_rows(map_a, p.x, p.rows, p.inner, 128);
  if (error == cudaSuccess) error = encode_permuted_rows(map_w, p.weight, 2 * p.width, p.inner, 4);
  if (error != cudaSuccess) return error;
  Op op{};
  op.act = p.act;
  op.gate_up = p.gate_up;
  op.rows = p.rows;
  op.width = p.width;
  TileShape shape{};
  shape.rows = p.rows;
  shape.blocks_k = static_cast<int>(p.inner / 64);
  shape.slices = static_cast<int>(p.width / 128);
  shape.box_distance = static_cast<int>(p.width / 32);
  const auto blocks = static_cast<int>(std::min<int64_t>((p.rows + 127) / 128 * shape.slices, multiprocessors()));
  return start(tile_kernel<Op, 1, kTileStages>, blocks, 384, tile_shared_bytes<Op>(kTileStages), 1, stream, map_a,
               map_w, shape, op);
}

template <Input kInput>
cudaError_t start_forward(const LinearSwigluForward& p, cudaStream_t stream) {
  const bool save = p.gate_up != nullptr;
  if (tiles_fit(p) && (save || !slices_fit(p))) {
    return save ? start_tiles<kInput, true>(p, stream) : start_tiles<kInput, false>(p, stream);
  }
  return save ? start_swiglu<kInput, true>(p, stream) : start_swiglu<kInput, false>(p, stream);
}

template <Input kInput, int kCluster>
cudaError_t start_backward(const LinearSwigluBackward& p, cudaStream_t stream) {
  using Op = TileSwigluBackward<kInput>;
  constexpr int kTileStages = 2;  // the buffers of gates and ups take the place of the third
  CUtensorMap map_a, map_w;
  cudaError_t error = encode_rows(map_a, p.grad_out, p.rows, p.inner, 128 / kCluster);
  if (error == cudaSuccess) error = encode_column_chunks(map_w, p.weight_down, p.inner, p.width, 64, 4);
  if (error != cudaSuccess) return error;
  Op op{};
  error = encode_map(op.map, p.gate_up, MapElement::bits16, MapSwizzle::none,
                     {{2 * p.width, 0, 256}, {p.rows, 4 * p.width, Op::kRows}});
  if (error != cudaSuccess) return error;
  op.grad_gate_up = p.grad_gate_up;
  op.act = p.act;
  op.rows = p.rows;
  op.width = p.width;
  TileShape shape{};
  shape.rows = p.rows;
  shape.blocks_k = static_cast<int>(p.inner / 64);
  shape.slices = static_cast<int>(p.width / 256);
  const int64_t tiles = (p.rows + 127) / 128 * (shape.slices / kCluster);
  const auto clusters = static_cast<int>(std::min<int64_t>(tiles, multiprocessors() / kCluster));
  return start(tile_kernel<Op, kCluster, kTileStages>, clusters * kCluster, 384, tile_shared_bytes<Op>(kTileStages),
               kCluster, stream, map_a, map_w, shape, op);
}

template <Input kInput>
cudaError_t start_backward(const LinearSwigluBackward& p, cudaStream_t stream) {
  return p.width % 512 == 0 ? start_backward<kInput, 2>(p, stream) : start_backward<kInput, 1>(p, stream);
}

}  // namespace

bool fits(const LinearSwigluForward& p) {
  return is_hopper() && (slices_fit(p) || tiles_fit(p)) && p.inner % 64 == 0 && p.inner > 0 && p.rows > 0 &&
         p.rows * (p.width / 64) <= INT32_MAX - 128 && p.element != Element::f32;
}

cudaError_t launch(const LinearSwigluForward& p, cudaStream_t stream) {
  if (!fits(p)) return cudaErrorInvalidValue;
  return p.element == Element::f16 ? start_forward<Input::f16>(p, stream) : start_forward<Input::bf16>(p, stream);
}

bool fits(const LinearSwigluBackward& p) {
  return is_hopper() && p.width % 256 == 0 && p.width > 0 && p.inner % 64 == 0 && p.inner > 0 && p.rows > 0 &&
         p.rows * (p.width / 256) <= INT32_MAX - 128 && p.element != Element::f32;
}

cudaError_t launch(const LinearSwigluBackward& p, cudaStream_t stream) {
  if (!fits(p)) return cudaErrorInvalidValue;
  return p.element == Element::f16 ? start_backward<Input::f16>(p, stream) : start_backward<Input::bf16>(p, stream);
}

}  // namespace hrm::ops::cuda::sm90
