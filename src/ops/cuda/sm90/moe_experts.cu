#include "ops/cuda/sm90/moe_experts.h"

#include "ops/cuda/gelu.cuh"
#include "ops/cuda/sm90/tile_gemm.cuh"

namespace hrm::ops::cuda::sm90 {
namespace {

struct Nothing {};

template <Input kType, Weight kOrder>
struct ExpertLinearTile {
  static constexpr Input kInput = kType, kOutput = kType;
  static constexpr Weight kWeight = kOrder;
  static constexpr int kColumns = 256;
  static constexpr bool kStores = true, kLastFirst = false, kGrouped = true;
  using Shared = Nothing;

  CUtensorMap map_out;  // (rows, width) in boxes of 16 x 64
  int width;

  __device__ static void init(Shared&) {}
};

template <Input kType>
__device__ inline uint32_t gelu_pair(uint32_t pair) {
  const float2 x = widen_pair<kType>(pair);
  return round_pair<kType>(gelu(x.x), gelu(x.y));
}

template <Input kType>
__device__ inline uint32_t gelu_backward_pair(uint32_t grad, uint32_t pair) {
  const float2 g = widen_pair<kType>(grad), x = widen_pair<kType>(pair);
  return round_pair<kType>(g.x * gelu_derivative(x.x), g.y * gelu_derivative(x.y));
}

template <Input kType>
struct ExpertUpTile {
  static constexpr Input kInput = kType, kOutput = kType;
  static constexpr Weight kWeight = Weight::rows;
  static constexpr int kColumns = 256;
  static constexpr bool kStores = false, kLastFirst = false, kGrouped = true;
  using Shared = Nothing;

  void* act;  // (rows, width)
  void* pre;
  int64_t width;

  __device__ static void init(Shared&) {}
  __device__ void fetch(Shared&, const TilePart&, int) const {}

  template <class Wait, class Done, class Refill>
  __device__ void run(Shared&, const TilePart& where, const uint8_t* staging, const Wait& wait, const Done& done,
                      const Refill&) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int64_t at = where.first_row * width + int64_t{where.slice} * 256 + 8 * lane;
    uint16_t* to_act = static_cast<uint16_t*>(act) + at;
    uint16_t* to_pre = static_cast<uint16_t*>(pre) + at;
    wait();
#pragma unroll 1
    for (int batch = 0; batch < 16; batch += 4) {
      uint4 x[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) x[i] = *staged(staging, batch + i, lane);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint4 out = {gelu_pair<kType>(x[i].x), gelu_pair<kType>(x[i].y), gelu_pair<kType>(x[i].z),
                           gelu_pair<kType>(x[i].w)};
        store_16(to_pre + (batch + i) * width, x[i]);
        store_16(to_act + (batch + i) * width, out);
      }
    }
    done();
  }
};

// The product is the gradient of act; makes of it that of pre, which arrives by TMA, two buffers of 8 rows for each
// reading warp.
template <Input kType>
struct ExpertUpBackwardTile {
  static constexpr Input kInput = kType, kOutput = kType;
  static constexpr Weight kWeight = Weight::transposed;
  static constexpr int kColumns = 256;
  static constexpr bool kStores = false, kLastFirst = false, kGrouped = true;
  static constexpr int kRows = 8;
  struct Shared {
    alignas(128) uint4 pre[3][2][kRows][32];  // reader, half, row, 16 bytes
    uint64_t full[3][2];
  };

  CUtensorMap map;  // pre (rows, width), in boxes of 8 x 256
  void* grad_pre;   // (rows, width)
  int64_t width;

  __device__ static void init(Shared& shared) {
    for (int i = 0; i < 6; ++i) barrier_init(&shared.full[i / 2][i % 2], 1);
  }

  __device__ void fetch(Shared& shared, const TilePart& where, int half) const {
    if (threadIdx.x % 32 != 0) return;
    uint64_t* full = &shared.full[where.reader][half];
    barrier_arrive_expect(full, kRows * 512);
    tma_load(&shared.pre[where.reader][half][0][0], &map, full, 256 * where.slice,
             static_cast<int>(where.first_row) + kRows * half);
  }

  template <class Wait, class Done, class Refill>
  __device__ void run(Shared& shared, const TilePart& where, const uint8_t* staging, const Wait& wait, const Done& done,
                      const Refill& refill) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int64_t at = where.first_row * width + int64_t{where.slice} * 256 + 8 * lane;
    uint16_t* to = static_cast<uint16_t*>(grad_pre) + at;
    // Parts come to a reader three apart: its count of parts is the phase of its buffers.
    const int count = (8 * where.iteration + where.part) / 3;
    wait();
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
      barrier_wait(&shared.full[where.reader][half], count & 1);
#pragma unroll 4
      for (int i = 0; i < kRows; ++i) {
        const uint4 grad = *staged(staging, kRows * half + i, lane), x = shared.pre[where.reader][half][i][lane];
        const uint4 out = {gelu_backward_pair<kType>(grad.x, x.x), gelu_backward_pair<kType>(grad.y, x.y),
                           gelu_backward_pair<kType>(grad.z, x.z), gelu_backward_pair<kType>(grad.w, x.w)};
        store_16(to + (kRows * half + i) * width, out);
      }
      refill(half);
    }
    done();
  }
};

bool fits(const ExpertTiles& tiles, int64_t width, int64_t inner, Element element) {
  return is_hopper() && element != Element::f32 && tiles.rows > 0 && tiles.rows % 128 == 0 && width > 0 &&
         width % 256 == 0 && inner > 0 && inner % 64 == 0 && tiles.rows / 128 * (width / 256) <= INT32_MAX &&
         tiles.experts * width <= INT32_MAX - 256 && tiles.experts * inner <= INT32_MAX - 256 &&
         tiles.rows <= INT32_MAX;
}

TileGroups groups_of(const ExpertTiles& tiles, int64_t weight_rows) {
  return {tiles.tile_experts, tiles.starts + tiles.experts, static_cast<int>(weight_rows)};
}

template <Input kInput, Weight kOrder>
cudaError_t start(const ExpertLinear& p, cudaStream_t stream) {
  constexpr int kStages = 3;
  const bool transposed = kOrder == Weight::transposed;
  CUtensorMap map_a, map_w;
  ExpertLinearTile<kInput, kOrder> op{};
  cudaError_t error = encode_rows(map_a, p.x, p.tiles.rows, p.inner, 128);
  if (error == cudaSuccess) {
    error = transposed ? encode_column_chunks(map_w, p.weight, p.tiles.experts * p.inner, p.width, 64, 4)
                       : encode_rows(map_w, p.weight, p.tiles.experts * p.width, p.inner, 256);
  }
  if (error == cudaSuccess) error = encode_rows(op.map_out, p.out, p.tiles.rows, p.width, 16);
  if (error != cudaSuccess) return error;
  op.width = static_cast<int>(p.width);
  return start_tiles<kStages>(map_a, map_w, p.tiles.rows, p.inner, p.width / 256, 0, op, stream,
                              groups_of(p.tiles, transposed ? p.inner : p.width));
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
  op.pre = p.pre;
  op.width = p.width;
  return start_tiles<kStages>(map_a, map_w, p.tiles.rows, p.inner, p.width / 256, 0, op, stream,
                              groups_of(p.tiles, p.width));
}

template <Input kInput>
cudaError_t start(const ExpertUpBackward& p, cudaStream_t stream) {
  using Op = ExpertUpBackwardTile<kInput>;
  constexpr int kStages = 2;  // the buffers of pre take the place of the third
  CUtensorMap map_a, map_w;
  Op op{};
  cudaError_t error = encode_rows(map_a, p.grad_y, p.tiles.rows, p.inner, 128);
  if (error == cudaSuccess) {
    error = encode_column_chunks(map_w, p.down, p.tiles.experts * p.inner, p.width, 64, 4);
  }
  if (error == cudaSuccess) {
    error = encode_map(op.map, p.pre, MapElement::bits16, MapSwizzle::none,
                       {{p.width, 0, 256}, {p.tiles.rows, 2 * p.width, Op::kRows}});
  }
  if (error != cudaSuccess) return error;
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
