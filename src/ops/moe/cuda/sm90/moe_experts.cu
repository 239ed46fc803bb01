#include "ops/moe/cuda/sm90/moe_experts.h"

#include "ops/cuda/sm90/tile_gemm.cuh"
#include "ops/moe/cuda/gelu.cuh"

namespace hrm::ops::cuda::sm90 {

template <Input kType, Weight kOrder, int kTileColumns>
struct ExpertLinearTile {
  static constexpr Input kInput = kType, kOutput = kType;
  static constexpr Weight kWeight = kOrder;
  static constexpr int kColumns = kTileColumns;
  static constexpr bool kStores = true, kLastFirst = false, kGrouped = true;

  CUtensorMap map_out;  // (rows, width) in boxes of 16 x 64
  int width;
};

template <Input kType>
__device__ inline void gelu_pair(uint32_t pair, uint32_t& act, uint32_t& slope) {
  const float2 x = widen_pair<kType>(pair);
  float2 y, dy;
  gelu(x.x, y.x, dy.x);
  gelu(x.y, y.y, dy.y);
  act = round_pair<kType>(y.x, y.y);
  slope = round_pair<kType>(dy.x, dy.y);
}

template <Input kType>
struct ExpertUpTile {
  static constexpr Input kInput = kType, kOutput = kType;
  static constexpr Weight kWeight = Weight::rows;
  static constexpr int kColumns = 256;
  static constexpr bool kStores = false, kLastFirst = false, kGrouped = true;

  void* act;    // (rows, width)
  void* slope;  // the same
  int64_t width;

  template <class Wait, class Done>
  __device__ void run(const TilePart& where, const uint8_t* staging, const Wait& wait, const Done& done) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int64_t at = where.first_row * width + int64_t{where.slice} * 256 + 8 * lane;
    uint16_t* to_act = static_cast<uint16_t*>(act) + at;
    uint16_t* to_slope = static_cast<uint16_t*>(slope) + at;
    wait();
#pragma unroll 1
    for (int batch = 0; batch < 16; batch += 4) {
      // All of the arithmetic before the stores: one warp has only its own instructions to fill the waits with.
      uint4 x[4], y[4], dy[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) x[i] = *staged(staging, batch + i, lane);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        gelu_pair<kType>(x[i].x, y[i].x, dy[i].x);
        gelu_pair<kType>(x[i].y, y[i].y, dy[i].y);
        gelu_pair<kType>(x[i].z, y[i].z, dy[i].z);
        gelu_pair<kType>(x[i].w, y[i].w, dy[i].w);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        store_16(to_act + (batch + i) * width, y[i]);
        store_16(to_slope + (batch + i) * width, dy[i]);
      }
    }
    done();
  }
};

// The product is the gradient of act; times the slope it is that of what GELU was taken of. The slopes of a part are on
// their way to registers while the part is still multiplied.
template <Input kType>
struct ExpertUpBackwardTile {
  static constexpr Input kInput = kType, kOutput = kType;
  static constexpr Weight kWeight = Weight::transposed;
  static constexpr int kColumns = 256;
  static constexpr bool kStores = false, kLastFirst = false, kGrouped = true;

  const void* slope;  // (rows, width)
  void* grad_pre;     // the same
  int64_t width;

  template <class Wait, class Done>
  __device__ void run(const TilePart& where, const uint8_t* staging, const Wait& wait, const Done& done) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int64_t at = where.first_row * width + int64_t{where.slice} * 256 + 8 * lane;
    const uint16_t* from = static_cast<const uint16_t*>(slope) + at;
    uint16_t* to = static_cast<uint16_t*>(grad_pre) + at;
    uint4 by[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) by[i] = *reinterpret_cast<const uint4*>(from + i * width);
    wait();
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const uint4 grad = *staged(staging, i, lane);
      store_16(to + i * width, {multiply_pairs<kType>(grad.x, by[i].x), multiply_pairs<kType>(grad.y, by[i].y),
                                multiply_pairs<kType>(grad.z, by[i].z), multiply_pairs<kType>(grad.w, by[i].w)});
    }
    done();
  }
};

namespace {

bool fits(const ExpertTiles& tiles, int64_t width, int64_t inner, Element element) {
  return is_hopper() && element != Element::f32 && tiles.rows > 0 && tiles.rows % 128 == 0 && width > 0 &&
         width % 256 == 0 && inner > 0 && inner % 64 == 0 && tiles.rows / 128 * (width / 256) <= INT32_MAX &&
         tiles.experts * width <= INT32_MAX - 256 && tiles.experts * inner <= INT32_MAX - 256 &&
         tiles.rows <= INT32_MAX;
}

TileGroups groups_of(const ExpertTiles& tiles, int64_t weight_rows) {
  return {tiles.tile_experts, tiles.starts + tiles.experts, static_cast<int>(weight_rows)};
}

template <Input kInput, Weight kOrder, int kColumns>
cudaError_t start_columns(const ExpertLinear& p, cudaStream_t stream) {
  constexpr int kStages = kColumns == 256 ? 3 : 4;
  const bool transposed = kOrder == Weight::transposed;
  CUtensorMap map_a, map_w;
  ExpertLinearTile<kInput, kOrder, kColumns> op{};
  cudaError_t error = encode_rows(map_a, p.x, p.tiles.rows, p.inner, 128);
  if (error == cudaSuccess) {
    error = transposed ? encode_column_chunks(map_w, p.weight, p.tiles.experts * p.inner, p.width, 64, kColumns / 64)
                       : encode_rows(map_w, p.weight, p.tiles.experts * p.width, p.inner, kColumns);
  }
  if (error == cudaSuccess) error = encode_rows(op.map_out, p.out, p.tiles.rows, p.width, 16);
  if (error != cudaSuccess) return error;
  op.width = static_cast<int>(p.width);
  return start_tiles<kStages>(map_a, map_w, p.tiles.rows, p.inner, (p.width + kColumns - 1) / kColumns, 0, op, stream,
                              groups_of(p.tiles, transposed ? p.inner : p.width));
}

// As start_linear_tile() chooses: in the last round some multiprocessors have no tile. Columns behind an expert's last
// are multiplied with what lies there, the next expert's or zeros, and not stored. How many rows there are only the
// device knows; this is the upper bound.
template <Input kInput, Weight kOrder>
cudaError_t start(const ExpertLinear& p, cudaStream_t stream) {
  const auto columns_in_turn = [&](int64_t columns) {
    const int64_t tiles = p.tiles.rows / 128 * ((p.width + columns - 1) / columns), at_once = multiprocessors();
    return (tiles + at_once - 1) / at_once * columns;
  };
  return columns_in_turn(192) * 100 < columns_in_turn(256) * 97 ? start_columns<kInput, kOrder, 192>(p, stream)
                                                                : start_columns<kInput, kOrder, 256>(p, stream);
}

template <Input kInput>
cudaError_t start(const ExpertUp& p, cudaStream_t stream) {
  constexpr int kStages = 3;
  CUtensorMap map_a, map_w;
  cudaError_t error = encode_rows(map_a, p.x, p.tiles.rows, p.inner, 128);
  if (error == cudaSuccess) error = encode_rows(map_w, p.up, p.tiles.experts * p.width, p.inner, 256);
  if (error != cudaSuccess) return error;
  ExpertUpTile<kInput> op{};
  op.act = p.act;
  op.slope = p.slope;
  op.width = p.width;
  return start_tiles<kStages>(map_a, map_w, p.tiles.rows, p.inner, p.width / 256, 0, op, stream,
                              groups_of(p.tiles, p.width));
}

template <Input kInput>
cudaError_t start(const ExpertUpBackward& p, cudaStream_t stream) {
  constexpr int kStages = 3;
  CUtensorMap map_a, map_w;
  cudaError_t error = encode_rows(map_a, p.grad_y, p.tiles.rows, p.inner, 128);
  if (error == cudaSuccess) {
    error = encode_column_chunks(map_w, p.down, p.tiles.experts * p.inner, p.width, 64, 4);
  }
  if (error != cudaSuccess) return error;
  ExpertUpBackwardTile<kInput> op{};
  op.slope = p.slope;
  op.grad_pre = p.grad_pre;
  op.width = p.width;
  return start_tiles<kStages>(map_a, map_w, p.tiles.rows, p.inner, p.width / 256, 0, op, stream,
                              groups_of(p.tiles, p.inner));
}

}  // namespace

bool fits(const ExpertLinear& p) {
  return fits(p.tiles, p.width, p.inner, p.element);
}
bool fits(const ExpertUp& p) {
  return fits(p.tiles, p.width, p.inner, p.element);
}
bool fits(const ExpertUpBackward& p) {
  return fits(p.tiles, p.width, p.inner, p.element);
}

cudaError_t launch(const ExpertLinear& p, cudaStream_t stream) {
  if (!fits(p)) return cudaErrorInvalidValue;
  if (p.element == Element::f16) {
    return p.transposed ? start<Input::f16, Weight::transposed>(p, stream) : start<Input::f16, Weight::rows>(p, stream);
  }
  return p.transposed ? start<Input::bf16, Weight::transposed>(p, stream) : start<Input::bf16, Weight::rows>(p, stream);
}

cudaError_t launch(const ExpertUp& p, cudaStream_t stream) {
  if (!fits(p)) return cudaErrorInvalidValue;
  return p.element == Element::f16 ? start<Input::f16>(p, stream) : start<Input::bf16>(p, stream);
}

cudaError_t launch(const ExpertUpBackward& p, cudaStream_t stream) {
  if (!fits(p)) return cudaErrorInvalidValue;
  return p.element == Element::f16 ? start<Input::f16>(p, stream) : start<Input::bf16>(p, stream);
}

}  // namespace hrm::ops::cuda::sm90
