#pragma once
// The epilogues of tile_gemm.cuh: none, and SwiGLU, forward and backward.

#include "ops/cuda/sm90/tile_gemm.cuh"

namespace hrm::ops::cuda::sm90 {

struct Empty {};

// The product alone. Operands of 16 bits have no slots.
template <Input kOperands, Input kRounded, int kTileColumns>
struct LinearTile {
  static constexpr Input kInput = kOperands, kOutput = kRounded;
  static constexpr int kColumns = kTileColumns;
  static constexpr Weight kWeight = Weight::rows;
  static constexpr bool kStores = true, kLastFirst = false, kGrouped = false;
  using Shared = Empty;

  CUtensorMap map_out;  // (rows, width) in boxes of 16 x 64
  const float* x_slot;
  const float* weight_slot;
  int width;

  __device__ static void init(Shared&) {}
};

// Rounded after silu and after the product, as ops/cuda/swiglu.cu does.
template <Input kType>
__device__ inline uint32_t swiglu_pair(uint32_t gate, uint32_t up) {
  const float2 g = widen_pair<kType>(gate);
  return multiply_pairs<kType>(round_pair<kType>(silu(g.x), silu(g.y)), up);
}

// act = silu(gate) * up, and, if kSave, gates and ups for the backward pass. A slice of W is 128 rows of the gate and
// the same 128 of the up projection: chunks 0 to 15 of a staged row are gates, 16 to 31 the ups of the same outputs.
// Two rows at a time, four times in one go, and the stores alone are conditional, so that the steps of all overlap.
template <Input kType, bool kSave>
struct LinearSwigluTile {
  static constexpr Input kInput = kType, kOutput = kType;
  static constexpr Weight kWeight = Weight::permuted_rows;
  static constexpr int kColumns = 256, kBoxes = 2;
  static constexpr bool kStores = false, kLastFirst = true, kGrouped = false;
  using Shared = Empty;

  void* act;      // (rows, width)
  void* gate_up;  // (rows, 2 * width), if kSave
  int64_t rows;
  int64_t width;

  __device__ static void init(Shared&) {}
  __device__ void fetch(Shared&, const TilePart&, int) const {}

  template <class Wait, class Done, class Refill>
  __device__ void run(Shared&, const TilePart& where, const uint8_t* staging, const Wait& wait, const Done& done,
                      const Refill&) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, chunk = lane % 16;
    const int64_t column = int64_t{where.slice} * 128 + 8 * chunk;
    wait();
#pragma unroll 1
    for (int batch = 0; batch < 16; batch += 8) {
      uint4 gate[4], up[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        gate[i] = *staged(staging, batch + 2 * i + lane / 16, chunk);
        up[i] = *staged(staging, batch + 2 * i + lane / 16, chunk + 16);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint4 out = {swiglu_pair<kType>(gate[i].x, up[i].x), swiglu_pair<kType>(gate[i].y, up[i].y),
                           swiglu_pair<kType>(gate[i].z, up[i].z), swiglu_pair<kType>(gate[i].w, up[i].w)};
        const int64_t row = where.first_row + batch + 2 * i + lane / 16;
        if (row < rows) {
          store_16(static_cast<uint16_t*>(act) + row * width + column, out);
          if constexpr (kSave) {
            uint16_t* to = static_cast<uint16_t*>(gate_up) + row * 2 * width + column;
            store_16(to, gate[i]);
            store_16(to + width, up[i]);
          }
        }
      }
    }
    done();
  }
};

// The product is the gradient of act = silu(gate) * up; makes of it those of gate and up. Gates and ups arrive by TMA,
// two buffers of kFetchedRows rows for each reading warp: 8, or 2 where a third stage of the product needs the room.
template <Input kType, int kFetchedRows>
struct LinearSwigluBackwardTile {
  static constexpr Input kInput = kType, kOutput = kType;
  static constexpr Weight kWeight = Weight::transposed;
  static constexpr int kColumns = 256;
  static constexpr bool kStores = false, kLastFirst = false, kGrouped = false;
  static constexpr int kRows = kFetchedRows, kPieces = 16 / kRows;
  struct Shared {
    alignas(128) uint4 gate_up[3][2][2][kRows][32];  // reader, buffer, gate or up, row, 16 bytes
    uint64_t full[3][2];
  };

  CUtensorMap map;     // gate_up (rows, 2 * width), in boxes of kRows x 256
  void* grad_gate_up;  // (rows, 2 * width)
  int64_t rows;
  int64_t width;

  __device__ static void init(Shared& shared) {
    for (int i = 0; i < 6; ++i) barrier_init(&shared.full[i / 2][i % 2], 1);
  }

  // Piece 0 or 1 of a part for its first call; run() asks for the others itself.
  __device__ void fetch(Shared& shared, const TilePart& where, int piece) const {
    if (threadIdx.x % 32 != 0) return;
    uint64_t* full = &shared.full[where.reader][piece % 2];
    const auto row = static_cast<int>(where.first_row) + kRows * piece;
    barrier_arrive_expect(full, 2 * kRows * 512);
    tma_load(&shared.gate_up[where.reader][piece % 2][0], &map, full, 256 * where.slice, row);
    tma_load(&shared.gate_up[where.reader][piece % 2][1], &map, full, static_cast<int>(width) + 256 * where.slice, row);
  }

  template <class Wait, class Done, class Refill>
  __device__ void run(Shared& shared, const TilePart& where, const uint8_t* staging, const Wait& wait, const Done& done,
                      const Refill& refill) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int64_t column = int64_t{where.slice} * 256 + 8 * lane;
    // Parts come to a reader three apart: its count of parts, and of the buffer's pieces in each, is its phase.
    const int count = (8 * where.iteration + where.part) / 3 * (kPieces / 2);
    wait();
#pragma unroll 1
    for (int piece = 0; piece < kPieces; ++piece) {
      barrier_wait(&shared.full[where.reader][piece % 2], (count + piece / 2) & 1);
      const auto& gate_up = shared.gate_up[where.reader][piece % 2];
#pragma unroll 4
      for (int i = 0; i < kRows; ++i) {
        const int64_t row = where.first_row + kRows * piece + i;
        const uint4 grad = *staged(staging, kRows * piece + i, lane), gate = gate_up[0][i][lane],
                    up = gate_up[1][i][lane];
        uint4 grad_gate, grad_up;
        differentiate(grad.x, gate.x, up.x, grad_gate.x, grad_up.x);
        differentiate(grad.y, gate.y, up.y, grad_gate.y, grad_up.y);
        differentiate(grad.z, gate.z, up.z, grad_gate.z, grad_up.z);
        differentiate(grad.w, gate.w, up.w, grad_gate.w, grad_up.w);
        if (row < rows) {
          uint16_t* to = static_cast<uint16_t*>(grad_gate_up) + row * 2 * width + column;
          store_16(to, grad_gate);
          store_16(to + width, grad_up);
        }
      }
      if (piece + 2 < kPieces) {
        __syncwarp();
        fetch(shared, where, piece + 2);
      } else {
        refill(piece + 2 - kPieces);
      }
    }
    done();
  }

  __device__ static void differentiate(uint32_t grad, uint32_t gate, uint32_t up, uint32_t& grad_gate,
                                       uint32_t& grad_up) {
    const float2 g = widen_pair<kInput>(grad), x = widen_pair<kInput>(gate), u = widen_pair<kInput>(up);
    const float2 s = {sigmoid(x.x), sigmoid(x.y)};
    const float2 gated = {x.x * s.x, x.y * s.y};
    grad_gate = round_pair<kInput>(g.x * u.x * s.x * (1.0f + x.x * (1.0f - s.x)),
                                   g.y * u.y * s.y * (1.0f + x.y * (1.0f - s.y)));
    grad_up = round_pair<kInput>(g.x * gated.x, g.y * gated.y);
  }
};

}  // namespace hrm::ops::cuda::sm90
