#pragma once
// The epilogues of tile_gemm.cuh: none, rotation, and SwiGLU.

#include "ops/cuda/sm90/tile_gemm.cuh"

namespace hrm::ops::cuda::sm90 {

// The product alone. Operands of 16 bits have no slots.
template <Input kOperands, Input kRounded, int kTileColumns>
struct LinearTile {
  static constexpr Input kInput = kOperands, kOutput = kRounded;
  static constexpr int kColumns = kTileColumns;
  static constexpr Weight kWeight = Weight::rows;
  static constexpr bool kStores = true, kLastFirst = false, kGrouped = false;

  CUtensorMap map_out;  // (rows, width) in boxes of 16 x 64
  const float* x_slot;
  const float* weight_slot;
  int width;
};

// The product with heads of 64 columns, those below `turned`, rotated by the position of their row: column i of a head
// is paired with column i + 32, as in ops/attention/cuda/qkv_heads.cu, and rounded before and after.
template <Input kType>
struct LinearRotatedTile {
  static constexpr Input kInput = kType, kOutput = kType;
  static constexpr Weight kWeight = Weight::rows;
  static constexpr int kColumns = 256;
  static constexpr bool kStores = false, kLastFirst = false, kGrouped = false;

  void* out;         // (rows, width)
  const float* cos;  // (table_rows, 32)
  const float* sin;
  int64_t rows;
  int width, turned;
  uint32_t table_rows;

  // A lane has chunk lane % 4 of both halves of a row's four heads.
  template <class Wait, class Done>
  __device__ void run(const TilePart& where, const uint8_t* staging, const Wait& wait, const Done& done) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, chunk = lane % 4;
    float4 c[2][2], s[2][2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t at = static_cast<uint32_t>(where.first_row + 8 * i + lane / 4) % table_rows * 32 + 8 * chunk;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        c[i][j] = *reinterpret_cast<const float4*>(cos + at + 4 * j);
        s[i][j] = *reinterpret_cast<const float4*>(sin + at + 4 * j);
      }
    }
    wait();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int in_part = 8 * i + lane / 4;
      const int64_t row = where.first_row + in_part;
#pragma unroll
      for (int head = 0; head < 4; ++head) {
        const int column = where.slice * 256 + 64 * head;
        uint4 low = *staged(staging, in_part, 8 * head + chunk), high = *staged(staging, in_part, 8 * head + 4 + chunk);
        if (column < turned) {
          turn(low.x, high.x, c[i][0].x, c[i][0].y, s[i][0].x, s[i][0].y);
          turn(low.y, high.y, c[i][0].z, c[i][0].w, s[i][0].z, s[i][0].w);
          turn(low.z, high.z, c[i][1].x, c[i][1].y, s[i][1].x, s[i][1].y);
          turn(low.w, high.w, c[i][1].z, c[i][1].w, s[i][1].z, s[i][1].w);
        }
        if (row < rows && column < width) {
          uint16_t* to = static_cast<uint16_t*>(out) + row * width + column + 8 * chunk;
          store_16(to, low);
          store_16(to + 32, high);
        }
      }
    }
    done();
  }

  __device__ static void turn(uint32_t& low, uint32_t& high, float c0, float c1, float s0, float s1) {
    const float2 a = widen_pair<kType>(low), b = widen_pair<kType>(high);
    low = round_pair<kType>(a.x * c0 - b.x * s0, a.y * c1 - b.y * s1);
    high = round_pair<kType>(b.x * c0 + a.x * s0, b.y * c1 + a.y * s1);
  }
};

// Rounded after silu and after the product, as ops/linear/cuda/swiglu.cu does.
template <Input kType>
__device__ inline uint32_t swiglu_pair(uint32_t gate, uint32_t up) {
  const float2 g = widen_pair<kType>(gate);
  return multiply_pairs<kType>(round_pair<kType>(silu(g.x), silu(g.y)), up);
}

// act = silu(gate) * up, and, if kSave, gates and ups for the backward pass. A slice of W is 128 rows of the gate and
// the same 128 of the up projection: chunks 0 to 15 of a staged row are gates, 16 to 31 the ups of the same outputs.
// Two rows at a time, four times in one go, and the stores alone are conditional, so that the steps of all overlap.
template <Input kType, bool kSave, bool kGroups = false>
struct LinearSwigluTile {
  static constexpr Input kInput = kType, kOutput = kType;
  static constexpr Weight kWeight = Weight::permuted_rows;
  static constexpr int kColumns = 256, kBoxes = 2;
  static constexpr bool kStores = false, kLastFirst = !kGroups, kGrouped = kGroups;

  void* act;      // (rows, width)
  void* gate_up;  // (rows, 2 * width), if kSave
  int64_t rows;
  int64_t width;

  template <class Wait, class Done>
  __device__ void run(const TilePart& where, const uint8_t* staging, const Wait& wait, const Done& done) const {
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

}  // namespace hrm::ops::cuda::sm90
