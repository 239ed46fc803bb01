#pragma once
// How a skinny product ends: what a thread does with four columns of a row when their sums are there.

#include "ops/cuda/sm90/elements.cuh"
#include "ops/linear/cuda/e4m3_pairs.cuh"
#include "ops/linear/cuda/skinny_gemm.h"

namespace hrm::ops::cuda::sm90 {

// Sums of squares of a row, one for each 64 columns.
constexpr int kSquareColumns = 64;
__host__ __device__ constexpr int squares_of(int width) {
  return (width + kSquareColumns - 1) / kSquareColumns;
}
static_assert(squares_of(65) == square_parts(65));

// Sixteen neighbouring threads of a warp have 64 columns, and finish the same row together. Block::kBits8: the weight
// has scales; Block::kPairs: pairs are made.
template <typename T, class Block>
struct SkinnyColumns {
  const SkinnyGemm& p;
  int column;  // the first of the four
  int x_rows;  // rows, rounded up to 8
  bool inside = column < p.width;
  float4 scale{1, 1, 1, 1}, scale_up{1, 1, 1, 1};  // of the weight's rows
  float4 factor{};                                 // of the norm that follows

  __device__ void load() {
    if (!inside) return;
    if constexpr (Block::kBits8) {
      scale = *reinterpret_cast<const float4*>(p.scales + column);
      if constexpr (Block::kGated) scale_up = *reinterpret_cast<const float4*>(p.scales + p.width + column);
    }
    if (!Block::kGated && p.next_norm != nullptr) factor = *reinterpret_cast<const float4*>(p.next_norm + column);
  }

  __device__ uint2 residual(int64_t row) const {
    if (Block::kGated || p.residual == nullptr || !inside) return {};
    return *reinterpret_cast<const uint2*>(static_cast<const T*>(p.residual) + row * p.width + column);
  }

  // rstd: of the norm in front, or 1; sum: of the product; adapted: u B^T, or zeros; beside: residual(row).
  __device__ void finish(int64_t row, float rstd, const float4& sum, const float4& adapted, const uint2& beside) const {
    float4 value = scaled(sum, scale, rstd, adapted);
    if (p.residual != nullptr) {
      const float2 low = widen_pair<kInputOf<T>>(beside.x), high = widen_pair<kInputOf<T>>(beside.y);
      value = {value.x + low.x, value.y + low.y, value.z + high.x, value.w + high.y};
    }
    const uint2 rounded = store(row, value);
    if (p.next_norm == nullptr) return;
    const float2 low = widen_pair<kInputOf<T>>(rounded.x), high = widen_pair<kInputOf<T>>(rounded.y);
    float squares = inside ? low.x * low.x + low.y * low.y + high.x * high.x + high.y * high.y : 0;
    constexpr int kSquareQuads = kSquareColumns / 4;
#pragma unroll
    for (int offset = kSquareQuads / 2; offset > 0; offset /= 2) {
      squares += __shfl_xor_sync(together(), squares, offset);
    }
    if (!inside) return;
    if (column % kSquareColumns == 0)
      p.squares[row * squares_of(static_cast<int>(p.width)) + column / kSquareColumns] = squares;
    const uint2 normed = {round_pair<kInputOf<T>>(low.x * factor.x, low.y * factor.y),
                          round_pair<kInputOf<T>>(high.x * factor.z, high.y * factor.w)};
    *reinterpret_cast<uint2*>(static_cast<T*>(p.scaled) + row * p.width + column) = normed;
    make_pairs(row, normed);
  }

  __device__ void finish_gated(int64_t row, float rstd, const float4& gate, const float4& up, const float4& adapted,
                               const float4& adapted_up) const {
    const float4 g = scaled(gate, scale, rstd, adapted), u = scaled(up, scale_up, rstd, adapted_up);
    const auto gated = [](float by, float with) {
      by = to_float(from_float<T>(by));
      return to_float(from_float<T>(by / (1.0f + __expf(-by)))) * to_float(from_float<T>(with));
    };
    const uint2 rounded = store(row, {gated(g.x, u.x), gated(g.y, u.y), gated(g.z, u.z), gated(g.w, u.w)});
    if (inside) make_pairs(row, rounded);
  }

 private:
  __device__ static uint32_t together() {
    return 0xffffu << (threadIdx.x & 16);
  }

  // Each step rounded on its own, so that all kernels give the same bits of the same sums.
  __device__ float4 scaled(float4 v, const float4& by, float rstd, const float4& adapted) const {
    if constexpr (Block::kBits8) {
      v = {__fmul_rn(v.x, by.x), __fmul_rn(v.y, by.y), __fmul_rn(v.z, by.z), __fmul_rn(v.w, by.w)};
    }
    v = {__fmul_rn(v.x, rstd), __fmul_rn(v.y, rstd), __fmul_rn(v.z, rstd), __fmul_rn(v.w, rstd)};
    if (p.adapter.slices == 0) return v;
    const auto add = [&](float a, float b) { return __fadd_rn(a, __fmul_rn(b, p.adapter.scale)); };
    return {add(v.x, adapted.x), add(v.y, adapted.y), add(v.z, adapted.z), add(v.w, adapted.w)};
  }

  __device__ uint2 store(int64_t row, const float4& v) const {
    const uint2 rounded = {round_pair<kInputOf<T>>(v.x, v.y), round_pair<kInputOf<T>>(v.z, v.w)};
    if (inside) *reinterpret_cast<uint2*>(static_cast<T*>(p.out) + row * p.width + column) = rounded;
    return rounded;
  }

  __device__ void make_pairs(int64_t row, const uint2& from) const {
    if constexpr (Block::kPairs) {
      if (p.pairs.values == nullptr) return;
      const float2 low = widen_pair<kInputOf<T>>(from.x), high = widen_pair<kInputOf<T>>(from.y);
      const float values[4] = {low.x, low.y, high.x, high.y};
      store_pairs(p.pairs, x_rows, p.width, row, column, values, together());
    }
  }
};

}  // namespace hrm::ops::cuda::sm90
