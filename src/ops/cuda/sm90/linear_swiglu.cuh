#pragma once
// The epilogue of the gate_up product.

#include "ops/cuda/sm90/stationary_gemm.cuh"

namespace hrm::ops::cuda::sm90 {

// A slice is kColumns of the gates and the same columns of the ups: accumulators of an output's gate and up stand in
// one thread, kColumns / 2 apart.
template <Input kType, int kColumns, bool kSave>
struct LinearSwiglu {
  static constexpr Input kInput = kType;
  static constexpr int kN = 2 * kColumns;
  static constexpr int kBoxes = 2;

  void* act;      // (rows, width)
  void* gate_up;  // (rows, 2 * width), or null
  int64_t rows;
  int64_t width;

  __device__ void store(const float (&d)[kColumns], int64_t first_row, int slice, int q) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int64_t row = first_row + 8 * i;
      const bool inside = row < rows;
#pragma unroll
      for (int run = 0; run < kColumns / 32; ++run) {
        const uint4 gate = round_eight<kInput>(d, run, i);
        const uint4 up = round_eight<kInput>(d, run + kColumns / 32, i);
        const uint4 out = {product(gate.x, up.x), product(gate.y, up.y), product(gate.z, up.z), product(gate.w, up.w)};
        const int64_t column = int64_t{slice} * kColumns + 32 * run + 8 * q;
        if (!inside) continue;
        store_16(static_cast<uint16_t*>(act) + row * width + column, out);
        if constexpr (kSave) {
          uint16_t* to = static_cast<uint16_t*>(gate_up) + row * 2 * width + column;
          store_16(to, gate);
          store_16(to + width, up);
        }
      }
    }
  }

  __device__ static uint32_t product(uint32_t gate, uint32_t up) {
    const float2 g = widen_pair<kInput>(gate);
    return multiply_pairs<kInput>(round_pair<kInput>(silu(g.x), silu(g.y)), up);
  }
};

}  // namespace hrm::ops::cuda::sm90
