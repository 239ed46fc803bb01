#pragma once
// A warp takes 16 rows through slots or classes, 16 at a time, as flash attention does: scores, distances and sums are
// products of tensor cores.
//
// Values are float16. States, keys and weights are split into two float16 numbers each, because the difference of two
// phases is what the caller wants: rounding them once would leave noise as large as that difference.

#include "ops/contrastive/cuda/geometric_relax.h"
#include "ops/contrastive/cuda/relax_division.cuh"
#include "ops/cuda/cluster.cuh"
#include "ops/cuda/mma.cuh"

namespace hrm::ops::cuda {

constexpr float kLog2E = 1.44269504f, kLn2 = 0.693147181f;
constexpr float kLeast = -1e30f;  // a maximum before the first logit
// Logits, in powers of 2, may exceed the running maximum by this much before sums are scaled anew. Weights then reach
// 2^8, which float16 holds.
constexpr float kSlack = 8;

// Four matrices of 8 x 8; row `lane % 8` of matrix `lane / 8` is at `from`. The lane gets elements 2 part, 2 part + 1
// of row `group` of each; transposed: of column `group`.
template <bool kTransposed>
__device__ inline void load_matrices(uint32_t (&result)[4], const __half* from) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 750
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(from));
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(result[0]), "=r"(result[1]), "=r"(result[2]), "=r"(result[3])
                 : "r"(address));
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(result[0]), "=r"(result[1]), "=r"(result[2]), "=r"(result[3])
                 : "r"(address));
  }
#else
  (void)result, (void)from;
#endif
}

// 2^x and 1 / sqrt(x), within 2^-22; smallest numbers become zero.
__device__ inline float power_of_2(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
__device__ inline float inverse_root(float x) {
  float result;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

__device__ inline uint32_t pair_bits(__half2 pair) {
  return *reinterpret_cast<uint32_t*>(&pair);
}

// Two numbers as float16, and what that leaves out.
struct Split {
  __device__ Split(float a, float b) {
    const __half2 rounded = __floats2half2_rn(a, b);
    const float2 back = __half22float2(rounded);
    high = pair_bits(rounded);
    low = pair_bits(__floats2half2_rn(a - back.x, b - back.y));
  }
  uint32_t high, low;
};

// 16 rows of W numbers as left factors, each split in two.
template <int W>
struct LeftRows {
  __device__ LeftRows(const __half* rows, int lane) {
    const __half* const from = rows + lane % 16 * SplitRows<W>::kStride + lane / 16 * 8;
#pragma unroll
    for (int k = 0; k < W / 16; ++k) {
      load_matrices<false>(high[k], from + 16 * k);
      load_matrices<false>(low[k], from + W + 16 * k);
    }
  }

  uint32_t high[W / 16][4], low[W / 16][4];
};

__device__ inline void multiply_four(float (&sum)[4], const uint32_t (&left)[4], uint32_t b0, uint32_t b1) {
  multiply<__half>(sum, left[0], left[1], left[2], left[3], b0, b1);
}
__device__ inline void product_of_four(float (&sum)[4], const uint32_t (&left)[4], uint32_t b0, uint32_t b1) {
  product(sum, left[0], left[1], left[2], left[3], b0, b1);
}

// sums = rows of `left` times two tiles of 8 rows of W numbers, once rounded, at `rows`. High and low parts of the left
// rows are summed apart, so that neither waits for the other.
template <int W>
__device__ inline void row_products(float (&sums)[2][4], const LeftRows<W>& left, const __half* rows, int stride,
                                    int lane) {
  const __half* const from = rows + (lane / 16 * 8 + lane % 8) * stride + lane / 8 % 2 * 8;
  float low[2][4];
#pragma unroll
  for (int k = 0; k < W / 16; ++k) {
    uint32_t b[4];
    load_matrices<false>(b, from + 16 * k);
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
      if (k == 0) {
        product_of_four(sums[tile], left.high[k], b[2 * tile], b[2 * tile + 1]);
        product_of_four(low[tile], left.low[k], b[2 * tile], b[2 * tile + 1]);
      } else {
        multiply_four(sums[tile], left.high[k], b[2 * tile], b[2 * tile + 1]);
        multiply_four(low[tile], left.low[k], b[2 * tile], b[2 * tile + 1]);
      }
    }
  }
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[tile][i] += low[tile][i];
  }
}

// The same for rows of high parts with their low parts W numbers behind; all but the product of both low parts.
template <int W>
__device__ inline void split_row_products(float (&sums)[2][4], const LeftRows<W>& left, const __half* rows, int stride,
                                          int lane) {
  const __half* const from = rows + (lane / 16 * 8 + lane % 8) * stride + lane / 8 % 2 * 8;
#pragma unroll
  for (int k = 0; k < W / 16; ++k) {
    uint32_t high[4], low[4];
    load_matrices<false>(high, from + 16 * k);
    load_matrices<false>(low, from + W + 16 * k);
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
      if (k == 0) {
        product_of_four(sums[tile], left.low[k], high[2 * tile], high[2 * tile + 1]);
      } else {
        multiply_four(sums[tile], left.low[k], high[2 * tile], high[2 * tile + 1]);
      }
      multiply_four(sums[tile], left.high[k], low[2 * tile], low[2 * tile + 1]);
      multiply_four(sums[tile], left.high[k], high[2 * tile], high[2 * tile + 1]);
    }
  }
}

// Weights of 16 rows and 16 slots as left factors: weights[tile][row][column] of two tiles of 8 slots.
struct LeftWeights {
  __device__ explicit LeftWeights(const float (&weights)[2][2][2]) {
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const Split split(weights[tile][r][0], weights[tile][r][1]);
        high[2 * tile + r] = split.high;
        low[2 * tile + r] = split.low;
      }
    }
  }
  uint32_t high[4], low[4];
};

// sum += weights times 16 rows of W numbers at `rows`, `stride` apart.
template <int W, bool kLow = true>
__device__ inline void add_rows(float (&sum)[W / 8][4], const LeftWeights& left, const __half* rows, int stride,
                                int lane) {
  const __half* const from = rows + (lane % 16) * stride + lane / 16 * 8;
#pragma unroll
  for (int k = 0; k < W / 16; ++k) {
    uint32_t b[4];
    load_matrices<true>(b, from + 16 * k);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      multiply_four(sum[2 * k + i], left.high, b[2 * i], b[2 * i + 1]);
      if constexpr (kLow) multiply_four(sum[2 * k + i], left.low, b[2 * i], b[2 * i + 1]);
    }
  }
}

// Sum and maximum over the four lanes that share a row.
__device__ inline float row_sum(float value) {
  value += __shfl_xor_sync(0xffffffffu, value, 1);
  return value + __shfl_xor_sync(0xffffffffu, value, 2);
}
__device__ inline float row_max(float value) {
  value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 1));
  return fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 2));
}

// Writes sums to the columns of the lane's two rows: 16 bytes a lane, for which neighbours exchange halves of two
// tiles.
template <int W>
__device__ inline void store_rows(const float (&sum)[W / 8][4], float* const (&to)[2], int column, int part) {
  const bool odd = part % 2 != 0;
#pragma unroll
  for (int tile = 0; tile < W / 8; tile += 2) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float2 mine = odd ? make_float2(sum[tile + 1][2 * r], sum[tile + 1][2 * r + 1])
                              : make_float2(sum[tile][2 * r], sum[tile][2 * r + 1]);
      const float2 give = odd ? make_float2(sum[tile][2 * r], sum[tile][2 * r + 1])
                              : make_float2(sum[tile + 1][2 * r], sum[tile + 1][2 * r + 1]);
      const float2 got = make_float2(__shfl_xor_sync(0xffffffffu, give.x, 1), __shfl_xor_sync(0xffffffffu, give.y, 1));
      const float4 four = odd ? make_float4(got.x, got.y, mine.x, mine.y) : make_float4(mine.x, mine.y, got.x, got.y);
      *reinterpret_cast<float4*>(to[r] + column + 8 * (tile + part % 2) + part / 2 * 4) = four;
    }
  }
}

template <int W>
__device__ inline void scale_row(float (&sum)[W / 8][4], int r, float factor) {
#pragma unroll
  for (int tile = 0; tile < W / 8; ++tile) {
    sum[tile][2 * r] *= factor;
    sum[tile][2 * r + 1] *= factor;
  }
}

// Products of the lane's rows with 16 slots.
struct SlotProducts {
  float score[2][4], dot[2][4];
};

// One tile of rows through the slots first .. last - 1 of the block.
template <int N, int D>
__device__ void retrieve(const GeometricRelax& p, const Shared<N, D>& shared, int row, int first, int last,
                         float* const (&to)[2]) {
  using S = Shared<N, D>;
  using C = Columns<N, D>;
  const int lane = static_cast<int>(threadIdx.x) % 32, group = lane / 4, part = lane % 4;
  const LeftRows<D> output(shared.outputs + row * SplitRows<D>::kStride, lane);
  const LeftRows<N> chart(shared.charts + row * SplitRows<N>::kStride, lane);
  const float squares[2] = {shared.squares[row + group], shared.squares[row + group + 8]};
  // e = w R / c is split after it was scaled by sqrt(cost_eps), its least c: then it is at most 2^8 R.
  const float root_eps = sqrtf(p.cost_eps), unscale = 1 / root_eps;
  const float by_value = p.retrieval_beta * p.gamma * kLog2E, by_cost = -p.retrieval_beta * kLog2E * unscale;

  float most[2] = {kLeast, kLeast}, sum[2] = {0, 0}, pulls[2] = {0, 0};
  float pull[N / 8][4] = {}, mix[D / 8][4] = {};
  const auto multiply_slots = [&](SlotProducts& products, int base) {
    split_row_products<N>(products.dot, chart, shared.keys + base * S::kKeyStride, S::kKeyStride, lane);
    row_products<D>(products.score, output, shared.values + base * S::kValueStride, S::kValueStride, lane);
  };
  const auto add_slots = [&](const SlotProducts& products, int base) {
    float rate[2][2][2], logit[2][2][2], largest[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
      const int slot = base + 8 * tile + 2 * part;
      const float2 norms = *reinterpret_cast<const float2*>(shared.key_norms + slot);
      const float2 resilience = *reinterpret_cast<const float2*>(shared.resilience + slot);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
#pragma unroll
        for (int column = 0; column < 2; ++column) {
          const float norm = column == 0 ? norms.x : norms.y, factor = column == 0 ? resilience.x : resilience.y;
          const float square = fmaxf(fmaf(-2, products.dot[tile][2 * r + column], norm + squares[r]), p.cost_eps);
          rate[tile][r][column] = factor * (root_eps * inverse_root(square));
          const float value =
              fmaf(by_cost * square, rate[tile][r][column], by_value * products.score[tile][2 * r + column]);
          logit[tile][r][column] = value;
          largest[r] = fmaxf(largest[r], value);
        }
      }
    }
    if (__any_sync(0xffffffffu, largest[0] > most[0] + kSlack || largest[1] > most[1] + kSlack)) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float above = fmaxf(most[r], row_max(largest[r])), factor = power_of_2(most[r] - above);
        most[r] = above;
        sum[r] *= factor;
        pulls[r] *= factor;
        scale_row<N>(pull, r, factor);
        scale_row<D>(mix, r, factor);
      }
    }
    float weights[2][2][2];
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
#pragma unroll
        for (int column = 0; column < 2; ++column) {
          const float w = power_of_2(logit[tile][r][column] - most[r]);
          weights[tile][r][column] = w;
          rate[tile][r][column] *= w;
          sum[r] += w;
          pulls[r] += rate[tile][r][column];
        }
      }
    }
    const __half* const keys = shared.keys + base * S::kKeyStride;
    add_rows<D>(mix, LeftWeights(weights), shared.values + base * S::kValueStride, S::kValueStride, lane);
    const LeftWeights rates(rate);
    add_rows<N>(pull, rates, keys, S::kKeyStride, lane);
    add_rows<N, /*kLow=*/false>(pull, rates, keys + N, S::kKeyStride, lane);
  };
  // The products of the next tile are made while this one waits for its functions.
  SlotProducts even, odd;
  if (first < last) multiply_slots(even, first);
  for (int base = first; base < last; base += 2 * kTile) {
    if (base + kTile < last) multiply_slots(odd, base + kTile);
    add_slots(even, base);
    if (base + kTile >= last) break;
    if (base + 2 * kTile < last) multiply_slots(even, base + 2 * kTile);
    add_slots(odd, base + kTile);
  }

#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float all = row_sum(sum[r]), all_pulls = unscale * row_sum(pulls[r]);
    scale_row<N>(pull, r, unscale);
    if (part == 0) *reinterpret_cast<float4*>(to[r] + C::kHead) = make_float4(most[r], all, all_pulls, 0);
  }
  store_rows<N>(pull, to, C::kPull, part);
  store_rows<D>(mix, to, C::kMix, part);
}

// The same for the readout: softmax(W o + b) W over the block's classes of this warp, every step-th tile.
template <int N, int D>
__device__ void read_out(const Shared<N, D>& shared, int row, int first_tile, int tiles, int step,
                         float* const (&to)[2]) {
  using S = Shared<N, D>;
  using C = Columns<N, D>;
  const int lane = static_cast<int>(threadIdx.x) % 32, part = lane % 4;
  const LeftRows<D> output(shared.outputs + row * SplitRows<D>::kStride, lane);
  float most[2] = {kLeast, kLeast}, sum[2] = {0, 0}, mix[D / 8][4] = {};
  for (int at = first_tile; at < tiles; at += step) {
    const __half* const rows = shared.readout + at * kTile * S::kValueStride;
    float score[2][4], weights[2][2][2], largest[2] = {-INFINITY, -INFINITY};
    row_products<D>(score, output, rows, S::kValueStride, lane);
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        score[tile][i] = (score[tile][i] + shared.bias[at * kTile + 8 * tile + 2 * part + i % 2]) * kLog2E;
        largest[i / 2] = fmaxf(largest[i / 2], score[tile][i]);
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float above = fmaxf(most[r], row_max(largest[r])), factor = power_of_2(most[r] - above);
      most[r] = above;
      sum[r] *= factor;
      scale_row<D>(mix, r, factor);
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
        for (int column = 0; column < 2; ++column) {
          weights[tile][r][column] = power_of_2(score[tile][2 * r + column] - above);
          sum[r] += weights[tile][r][column];
        }
      }
    }
    add_rows<D>(mix, LeftWeights(weights), rows, S::kValueStride, lane);
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float all = row_sum(sum[r]);
    if (part == 0) *reinterpret_cast<float4*>(to[r] + C::kReadout) = make_float4(most[r], all, 0, 0);
  }
  store_rows<D>(mix, to, C::kReadoutMix, part);
}

}  // namespace hrm::ops::cuda
