// All relaxation steps of a phase in one kernel.
//
// A cluster of blocks owns some tiles of 16 rows and shares the slots: each block keeps its part of them in shared
// memory for all steps, and the state of all rows. In a step a warp takes one tile of rows through its part of the
// block's slots, as flash attention does: scores, distances and both sums are products of tensor cores. Then each block
// sums the parts of its own rows, moves them, and hands the new state to the others.
//
// Values are float16. States, keys and weights are split into two float16 numbers each, because the difference of two
// phases is what the caller wants: rounding them once would leave noise as large as that difference.
#include "ops/contrastive/cuda/geometric_relax.h"

#include <array>
#include <map>
#include <mutex>

#include "ops/cuda/cluster.cuh"
#include "ops/cuda/common.cuh"
#include "ops/cuda/mma.cuh"

namespace hrm::ops::cuda {
namespace {

constexpr int kTile = 16;  // rows of a tile, slots of a tile, classes of a tile
constexpr int kMostClasses = 1024, kMostWarps = 12, kMostCluster = 8;
constexpr float kLog2E = 1.44269504f, kLn2 = 0.693147181f;
constexpr float kLeast = -1e30f;  // a maximum before the first logit
// Logits, in powers of 2, may exceed the running maximum by this much before sums are scaled anew. Weights then reach
// 2^8, which float16 holds.
constexpr float kSlack = 8;

// How the rows and slots are divided.
struct Division {
  int row_tiles = 0;   // of a cluster, each the work of slot_warps warps in every block
  int slot_warps = 0;  // warps that share a tile's slots in a block
  int cluster = 0;     // blocks that share the slots
  int slots = 0;       // of a block at most, a multiple of kTile * slot_warps
  int classes = 0;     // of a block at most, a multiple of kTile

  __host__ __device__ int warps() const { return row_tiles * slot_warps; }
  __host__ __device__ int rows() const { return row_tiles * kTile; }
  __host__ __device__ int own_rows() const { return rows() / cluster; }
  __host__ __device__ int parts() const { return cluster * slot_warps; }
};

// What a warp's part of the slots adds to a row, by float32 numbers: maximum, sum of weights and sum of e; sum of e Kt;
// sum of w V; of the readout maximum and sum; sum of p W. Groups begin at multiples of 4.
template <int N, int D>
struct Columns {
  static constexpr int kMax = 0, kSum = 1, kPulls = 2, kPull = 4, kMix = kPull + N, kReadout = kMix + D;
  static constexpr int kReadoutMix = kReadout + 4;
  __host__ __device__ static constexpr int count(bool nudged) { return nudged ? kReadoutMix + D : kReadout; }
};

template <int N, int D>
struct Shared {
  // Halves. A key is N high parts, N low ones and N of padding, so that the loads of a warp meet different banks.
  static constexpr int kKeyStride = 3 * N, kValueStride = D + 8, kChartStride = N + 8;

  __host__ __device__ Shared(char* base, const Division& division, bool nudged) : at(base) {
    const int slots = division.slots, classes = division.classes, rows = division.rows(), own = division.own_rows();
    const int columns = Columns<N, D>::count(nudged);
    keys = take<__half>(slots * kKeyStride);
    values = take<__half>(slots * kValueStride);
    readout = take<__half>(classes * kValueStride);
    high = take<__half>(rows * kValueStride);
    low = take<__half>(rows * kValueStride);
    x_high = take<__half>(rows * kChartStride);
    x_low = take<__half>(rows * kChartStride);
    squares = take<float>(rows);
    key_norms = take<float>(slots);
    resilience = take<float>(slots);
    bias = take<float>(classes);
    partial = take<float>(own * division.parts() * columns);
    metric = take<float>(N * N);
    state = take<float>(own * (N + D));
    drive = take<float>(own * N);
    target = take<float>(own * D);
    sign = take<float>(own);
    speed = take<float>(own);
    reduced = take<float>(division.warps() * columns);
  }

  template <typename T>
  __host__ __device__ T* take(int count) {
    T* const result = reinterpret_cast<T*>(at);
    at += (static_cast<size_t>(count) * sizeof(T) + 15) / 16 * 16;
    return result;
  }

  char* at;
  // state: x and o of the block's own rows, N + D numbers a row. partial: for each of them, what all parts add.
  float *squares, *key_norms, *resilience, *bias, *partial, *metric, *state, *drive, *target, *sign, *speed, *reduced;
  __half *keys, *values, *readout, *high, *low, *x_high, *x_low;
};

// Of 4 matrices of 8 x 8 that lie one below the other and side by side: row `lane % 8` of the lane's matrix is at
// `from`; the lane gets two elements of column lane / 4 of each.
__device__ inline void load_columns(uint32_t (&result)[4], const __half* from) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 750
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(from));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(result[0]), "=r"(result[1]), "=r"(result[2]), "=r"(result[3])
               : "r"(address));
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

// 16 rows of W numbers as left factors, each split in two. Of 16 summands of a product a lane has four that lie side by
// side, in the right factor, too.
template <int W>
struct LeftRows {
  static constexpr int kSteps = W / 16, kStride = W + 8;

  __device__ LeftRows(const __half* high_rows, const __half* low_rows, int group, int part) {
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int at = (group + 8 * r) * kStride + part * (W / 4) + 4 * k;
        const uint2 h = *reinterpret_cast<const uint2*>(high_rows + at);
        const uint2 l = *reinterpret_cast<const uint2*>(low_rows + at);
        high[k][r] = h.x;
        high[k][r + 2] = h.y;
        low[k][r] = l.x;
        low[k][r + 2] = l.y;
      }
    }
  }

  uint32_t high[kSteps][4], low[kSteps][4];
};

// A quarter of a row of W numbers, as pairs.
template <int W>
__device__ inline void load_part(uint32_t (&words)[W / 8], const __half* from) {
  if constexpr (W >= 32) {
#pragma unroll
    for (int i = 0; i < W / 8; i += 4) {
      const uint4 four = *reinterpret_cast<const uint4*>(from + 2 * i);
      words[i] = four.x;
      words[i + 1] = four.y;
      words[i + 2] = four.z;
      words[i + 3] = four.w;
    }
  } else {
    const uint2 two = *reinterpret_cast<const uint2*>(from);
    words[0] = two.x;
    words[1] = two.y;
  }
}

// sum += rows of `left` times 8 rows at `row`, of which a lane reads that of its group: W numbers, once rounded.
template <int W>
__device__ inline void add_product(float (&sum)[4], const LeftRows<W>& left, const __half* row, int part) {
  uint32_t words[W / 8];
  load_part<W>(words, row + part * (W / 4));
#pragma unroll
  for (int k = 0; k < W / 16; ++k) {
    const uint32_t b0 = words[2 * k], b1 = words[2 * k + 1];
    multiply<__half>(sum, left.high[k][0], left.high[k][1], left.high[k][2], left.high[k][3], b0, b1);
    multiply<__half>(sum, left.low[k][0], left.low[k][1], left.low[k][2], left.low[k][3], b0, b1);
  }
}

// The same for rows of high parts with their low parts W numbers behind; all but the product of both low parts.
template <int W>
__device__ inline void add_split_product(float (&sum)[4], const LeftRows<W>& left, const __half* row, int part) {
  add_product<W>(sum, left, row, part);
  uint32_t words[W / 8];
  load_part<W>(words, row + W + part * (W / 4));
#pragma unroll
  for (int k = 0; k < W / 16; ++k) {
    multiply<__half>(sum, left.high[k][0], left.high[k][1], left.high[k][2], left.high[k][3], words[2 * k],
                     words[2 * k + 1]);
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
    load_columns(b, from + 16 * k);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      multiply<__half>(sum[2 * k + i], left.high[0], left.high[1], left.high[2], left.high[3], b[2 * i], b[2 * i + 1]);
      if constexpr (kLow) {
        multiply<__half>(sum[2 * k + i], left.low[0], left.low[1], left.low[2], left.low[3], b[2 * i], b[2 * i + 1]);
      }
    }
  }
}

// Sum over the four lanes that share a row.
__device__ inline float row_sum(float value) {
  value += __shfl_xor_sync(0xffffffffu, value, 1);
  return value + __shfl_xor_sync(0xffffffffu, value, 2);
}

__device__ inline float row_max(float value) {
  value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 1));
  return fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 2));
}

// Where a lane writes what its warp's part adds to two rows: in the blocks that own them.
template <int N, int D>
struct PartOfRows {
  __device__ PartOfRows(const Shared<N, D>& shared, const Division& division, int row, int part_of_all, int columns) {
    const int own = division.own_rows();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int at = row + 8 * r;
      to[r] = in_block_of_cluster(shared.partial, at / own) + (at % own * division.parts() + part_of_all) * columns;
    }
  }
  float* to[2];
};

// Writes sums to the columns of the lane's two rows.
template <int W>
__device__ inline void store_rows(const float (&sum)[W / 8][4], float* const (&to)[2], int column, int part) {
#pragma unroll
  for (int tile = 0; tile < W / 8; ++tile) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      *reinterpret_cast<float2*>(to[r] + column + 8 * tile + 2 * part) =
          make_float2(sum[tile][2 * r], sum[tile][2 * r + 1]);
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

// One tile of rows through the slots first .. last - 1 of the block, of which those from `filled` on are empty.
template <int N, int D>
__device__ void retrieve(const GeometricRelax& p, const Shared<N, D>& shared, int row, int first, int last, int filled,
                         const PartOfRows<N, D>& to) {
  using S = Shared<N, D>;
  using C = Columns<N, D>;
  const int lane = static_cast<int>(threadIdx.x) % 32, group = lane / 4, part = lane % 4;
  const LeftRows<D> output(shared.high + row * S::kValueStride, shared.low + row * S::kValueStride, group, part);
  const LeftRows<N> chart(shared.x_high + row * S::kChartStride, shared.x_low + row * S::kChartStride, group, part);
  const float squares[2] = {shared.squares[row + group], shared.squares[row + group + 8]};
  const float by_value = p.retrieval_beta * p.gamma * kLog2E, by_cost = -p.retrieval_beta * kLog2E;

  float most[2] = {kLeast, kLeast}, sum[2] = {0, 0}, pulls[2] = {0, 0};
  float pull[N / 8][4] = {}, mix[D / 8][4] = {};
  for (int base = first; base < last; base += kTile) {
    const __half* const keys = shared.keys + base * S::kKeyStride;
    const __half* const values = shared.values + base * S::kValueStride;
    float score[2][4] = {}, dot[2][4] = {};
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
      add_split_product<N>(dot[tile], chart, keys + (8 * tile + group) * S::kKeyStride, part);
      add_product<D>(score[tile], output, values + (8 * tile + group) * S::kValueStride, part);
    }
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
          const float square = fmaxf(norm + squares[r] - 2 * dot[tile][2 * r + column], 0) + p.cost_eps;
          const float inverse = inverse_root(square);
          rate[tile][r][column] = factor * inverse;
          float value = by_value * score[tile][2 * r + column] + by_cost * factor * (square * inverse);
          if (slot + column >= filled) value = -INFINITY;
          logit[tile][r][column] = value;
          largest[r] = fmaxf(largest[r], value);
        }
      }
    }
    if (__any_sync(0xffffffffu, largest[0] > most[0] + kSlack || largest[1] > most[1] + kSlack)) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float now = fmaxf(most[r], row_max(largest[r])), factor = power_of_2(most[r] - now);
        most[r] = now;
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
    add_rows<D>(mix, LeftWeights(weights), values, S::kValueStride, lane);
    const LeftWeights rates(rate);
    add_rows<N>(pull, rates, keys, S::kKeyStride, lane);
    add_rows<N, /*kLow=*/false>(pull, rates, keys + N, S::kKeyStride, lane);
  }

#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float all = row_sum(sum[r]), all_pulls = row_sum(pulls[r]);
    if (part == 0) *reinterpret_cast<float4*>(to.to[r]) = make_float4(most[r], all, all_pulls, 0);
  }
  store_rows<N>(pull, to.to, C::kPull, part);
  store_rows<D>(mix, to.to, C::kMix, part);
}

// The same for the readout: softmax(W o + b) W over the block's classes of this warp, every step-th tile.
template <int N, int D>
__device__ void read_out(const Shared<N, D>& shared, int row, int first_tile, int tiles, int step,
                         const PartOfRows<N, D>& to) {
  using S = Shared<N, D>;
  using C = Columns<N, D>;
  const int lane = static_cast<int>(threadIdx.x) % 32, group = lane / 4, part = lane % 4;
  const LeftRows<D> output(shared.high + row * S::kValueStride, shared.low + row * S::kValueStride, group, part);
  float most[2] = {kLeast, kLeast}, sum[2] = {0, 0}, mix[D / 8][4] = {};
  for (int at = first_tile; at < tiles; at += step) {
    const __half* const rows = shared.readout + at * kTile * S::kValueStride;
    float score[2][4] = {}, weights[2][2][2], largest[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
      add_product<D>(score[tile], output, rows + (8 * tile + group) * S::kValueStride, part);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        score[tile][i] = (score[tile][i] + shared.bias[at * kTile + 8 * tile + 2 * part + i % 2]) * kLog2E;
        largest[i / 2] = fmaxf(largest[i / 2], score[tile][i]);
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float now = fmaxf(most[r], row_max(largest[r])), factor = power_of_2(most[r] - now);
      most[r] = now;
      sum[r] *= factor;
      scale_row<D>(mix, r, factor);
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
        for (int column = 0; column < 2; ++column) {
          weights[tile][r][column] = power_of_2(score[tile][2 * r + column] - now);
          sum[r] += weights[tile][r][column];
        }
      }
    }
    add_rows<D>(mix, LeftWeights(weights), rows, S::kValueStride, lane);
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float all = row_sum(sum[r]);
    if (part == 0) *reinterpret_cast<float4*>(to.to[r] + C::kReadout) = make_float4(most[r], all, 0, 0);
  }
  store_rows<D>(mix, to.to, C::kReadoutMix, part);
}

__device__ inline float warp_max(float value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, offset));
  return value;
}

// Sums the parts of one of the block's own rows, by a warp, into `reduced`, whose maxima are those of all parts.
template <int N, int D>
__device__ void sum_parts(const Shared<N, D>& shared, const Division& division, int own_row, bool nudged,
                          float* reduced) {
  using C = Columns<N, D>;
  const int lane = static_cast<int>(threadIdx.x) % 32, parts = division.parts(), columns = C::count(nudged);
  const float* const rows = shared.partial + own_row * parts * columns;
  // A lane has the factors of two parts.
  float factor[2], readout_factor[2] = {0, 0}, most[2], readout_most[2] = {kLeast, kLeast};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int part = lane + 32 * i;
    most[i] = part < parts ? rows[part * columns + C::kMax] : kLeast;
    if (nudged) readout_most[i] = part < parts ? rows[part * columns + C::kReadout] : kLeast;
  }
  const float all = warp_max(fmaxf(most[0], most[1])), readout_all = warp_max(fmaxf(readout_most[0], readout_most[1]));
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    factor[i] = power_of_2(most[i] - all);
    readout_factor[i] = power_of_2(readout_most[i] - readout_all);
  }
  for (int first = 0; first < columns; first += 128) {
    const int column = first + 4 * lane;
    const bool inside = column < columns, of_readout = column >= C::kReadout;
    float4 total = make_float4(0, 0, 0, 0);
#pragma unroll 8
    for (int part = 0; part < parts; ++part) {
      const float of_slots = __shfl_sync(0xffffffffu, part < 32 ? factor[0] : factor[1], part % 32);
      const float of_classes = __shfl_sync(0xffffffffu, part < 32 ? readout_factor[0] : readout_factor[1], part % 32);
      const float scale = of_readout ? of_classes : of_slots;
      if (!inside) continue;
      const float4 value = *reinterpret_cast<const float4*>(rows + part * columns + column);
      total.x = fmaf(scale, value.x, total.x);
      total.y = fmaf(scale, value.y, total.y);
      total.z = fmaf(scale, value.z, total.z);
      total.w = fmaf(scale, value.w, total.w);
    }
    if (column == C::kMax) total.x = all;
    if (nudged && column == C::kReadout) total.x = readout_all;
    if (inside) *reinterpret_cast<float4*>(reduced + column) = total;
  }
  __syncwarp();
}

// A lane's four numbers of a row: lanes 0 .. N/4 - 1 have those of x, the D/4 lanes behind those of o.
template <int N, int D>
struct FourOfRow {
  static_assert(N / 4 + D / 4 <= 32);
  __device__ explicit FourOfRow(int lane) : of_x(lane < N / 4), real(lane < N / 4 + D / 4), at(4 * lane) {}
  bool of_x, real;
  int at;  // among the N + D numbers
};

template <int N, int D>
__device__ float4 moves_of(const GeometricRelax& p, const Shared<N, D>& shared, const float* rates, int own_row,
                           const FourOfRow<N, D>& four, bool nudged, const float* reduced) {
  using C = Columns<N, D>;
  const float* const state = shared.state + own_row * (N + D);
  const float inverse = reduced[C::kSum] > 0 ? 1 / reduced[C::kSum] : 0;
  float moves[4] = {0, 0, 0, 0};
  if (four.of_x) {
    const float pulls = reduced[C::kPulls] * inverse;
#pragma unroll 4
    for (int i = 0; i < N; ++i) {
      const float pull = reduced[C::kPull + i] * inverse - pulls * state[i];
      const float4 metric = *reinterpret_cast<const float4*>(shared.metric + i * N + four.at);
      moves[0] = fmaf(pull, metric.x, moves[0]);
      moves[1] = fmaf(pull, metric.y, moves[1]);
      moves[2] = fmaf(pull, metric.z, moves[2]);
      moves[3] = fmaf(pull, metric.w, moves[3]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      moves[i] = rates[0] * (p.kappa * (shared.drive[own_row * N + four.at + i] - state[four.at + i]) + moves[i]);
    }
  } else if (four.real) {
    const int at = four.at - N;
    const float nudge = nudged ? shared.sign[own_row] * rates[2] : 0;
    const float readout_inverse = nudged ? 1 / reduced[C::kReadout + 1] : 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float force = p.gamma * (reduced[C::kMix + at + i] * inverse - state[N + at + i]);
      if (nudged) {
        force -= nudge * (reduced[C::kReadoutMix + at + i] * readout_inverse - shared.target[own_row * D + at + i]);
      }
      moves[i] = rates[1] * force;
    }
  }
  return make_float4(moves[0], moves[1], moves[2], moves[3]);
}

// Puts the state of one of the block's own rows, by a warp, into all blocks.
template <int N, int D>
__device__ void hand_out(const Shared<N, D>& shared, const Division& division, int own_row,
                         const FourOfRow<N, D>& four) {
  using S = Shared<N, D>;
  const int row = rank_in_cluster() * division.own_rows() + own_row;
  const float* const state = shared.state + own_row * (N + D) + four.at;
  float square = 0;
  uint2 high = make_uint2(0, 0), low = high;
  if (four.real) {
    const Split first(state[0], state[1]), second(state[2], state[3]);
    high = make_uint2(first.high, second.high);
    low = make_uint2(first.low, second.low);
    if (four.of_x) square = state[0] * state[0] + state[1] * state[1] + state[2] * state[2] + state[3] * state[3];
  }
  square = warp_sum(square);
  for (int block = 0; block < division.cluster; ++block) {
    if (four.of_x) {
      const int at = row * S::kChartStride + four.at;
      *reinterpret_cast<uint2*>(in_block_of_cluster(shared.x_high, block) + at) = high;
      *reinterpret_cast<uint2*>(in_block_of_cluster(shared.x_low, block) + at) = low;
      if (four.at == 0) in_block_of_cluster(shared.squares, block)[row] = square;
    } else if (four.real) {
      const int at = row * S::kValueStride + four.at - N;
      *reinterpret_cast<uint2*>(in_block_of_cluster(shared.high, block) + at) = high;
      *reinterpret_cast<uint2*>(in_block_of_cluster(shared.low, block) + at) = low;
    }
  }
}

template <int N, int D>
__global__ void __launch_bounds__(kMostWarps * 32) geometric_relax(GeometricRelax p, Division division) {
  extern __shared__ char4 memory[];
  using S = Shared<N, D>;
  using C = Columns<N, D>;
  const bool nudged = p.readout != nullptr;
  const int columns = C::count(nudged), thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int threads = static_cast<int>(blockDim.x), warps = division.warps();
  const S shared(reinterpret_cast<char*>(memory), division, nudged);
  const int rank = rank_in_cluster(), cluster = static_cast<int>(blockIdx.x) / division.cluster;
  const int own = division.own_rows(), first_own = cluster * division.rows() + rank * own;

  // The block's part of the slots that are filled.
  const int filled = p.filled == nullptr ? p.slots : static_cast<int>(min(static_cast<int64_t>(p.slots), *p.filled));
  const int slot_warps = division.slot_warps, grain = kTile * slot_warps;
  const int share = (filled + division.cluster * grain - 1) / (division.cluster * grain) * grain;
  const int first_slot = rank * share, mine = max(0, min(share, filled - first_slot));
  for (int i = thread; i < share * N; i += threads) {
    const int slot = i / N, at = i % N;
    const float key =
        slot < mine && at < p.coords ? p.keys[static_cast<int64_t>(first_slot + slot) * p.coords + at] : 0;
    const __half high = __float2half_rn(key);
    shared.keys[slot * S::kKeyStride + at] = high;
    shared.keys[slot * S::kKeyStride + N + at] = __float2half_rn(key - __half2float(high));
  }
  const auto* const values = static_cast<const __half*>(p.values);
  for (int i = thread; i < share * D; i += threads) {
    const int slot = i / D, at = i % D;
    shared.values[slot * S::kValueStride + at] =
        slot < mine && at < p.width ? values[static_cast<int64_t>(first_slot + slot) * p.width + at] : __half(0.0f);
  }
  for (int i = thread; i < share; i += threads) {
    shared.key_norms[i] = i < mine ? p.key_norms[first_slot + i] : 0;
    shared.resilience[i] = i < mine ? p.resilience[first_slot + i] : 0;
  }
  const auto* const readout = static_cast<const __half*>(p.readout);
  // Every parts-th tile of classes is a warp's.
  for (int i = thread; i < division.classes * D; i += threads) {
    const int row = i / D, at = i % D, tile = row / kTile;
    const int of_all = (tile / slot_warps * division.parts() + rank * slot_warps + tile % slot_warps) * kTile;
    const int klass = of_all + row % kTile;
    shared.readout[row * S::kValueStride + at] =
        klass < p.classes && at < p.width ? readout[klass * p.width + at] : __half(0.0f);
    if (at == 0) shared.bias[row] = klass < p.classes ? p.bias[klass] : -INFINITY;
  }
  for (int i = thread; i < N * N; i += threads) {
    const int row = i / N, column = i % N;
    shared.metric[i] = row < p.coords && column < p.coords ? p.metric[row * p.coords + column] : 0;
  }
  for (int i = thread; i < own * (N + D); i += threads) {
    const int row = i / (N + D), column = i % (N + D), from = first_own + row, at = column - N;
    const int64_t chart = static_cast<int64_t>(from) * p.coords + column,
                  output = static_cast<int64_t>(from) * p.width + at;
    const bool real = from < p.rows && (column < N ? column < p.coords : at < p.width);
    shared.state[i] = real ? (column < N ? p.x[chart] : p.o[output]) : 0;
    if (column < N) {
      shared.drive[row * N + column] = real ? p.drive[chart] : 0;
    } else if (nudged) {
      shared.target[row * D + at] = real ? __half2float(readout[p.targets[from] * p.width + at]) : 0;
    }
  }
  for (int i = thread; i < own; i += threads) {
    shared.sign[i] = nudged && first_own + i < p.rows ? p.signs[first_own + i] : 0;
    shared.speed[i] = 0;
  }
  const float rates[3] = {p.rates[0], p.rates[1], p.rates[2]};
  const FourOfRow<N, D> four(lane);
  sync_cluster();  // all blocks run, so their shared memory may be written
  for (int row = warp; row < own; row += warps) hand_out<N, D>(shared, division, row, four);
  sync_cluster();

  const int row_tile = warp % division.row_tiles, slot_warp = warp / division.row_tiles, chunk = share / slot_warps;
  const int first = slot_warp * chunk, last = min(first + chunk, (mine + kTile - 1) / kTile * kTile);
  const PartOfRows<N, D> to(shared, division, row_tile * kTile + lane / 4, rank * slot_warps + slot_warp, columns);
  float* const reduced = shared.reduced + warp * columns;
  for (int step = 0;; ++step) {
    retrieve<N, D>(p, shared, row_tile * kTile, first, last, mine, to);
    if (nudged) {
      read_out<N, D>(shared, row_tile * kTile, slot_warp, division.classes / kTile, slot_warps, to);
    }
    sync_cluster();
    for (int row = warp; row < own; row += warps) {
      sum_parts<N, D>(shared, division, row, nudged, reduced);
      if (step == p.steps) {
        if (lane == 0 && first_own + row < p.rows) {
          p.log_sum[first_own + row] = (reduced[C::kMax] + log2f(fmaxf(reduced[C::kSum], 1e-30f))) * kLn2;
          p.speed[first_own + row] = shared.speed[row];
          if (p.steps == 0) p.residual[first_own + row] = 0;
        }
        continue;
      }
      const float4 moves = moves_of<N, D>(p, shared, rates, row, four, nudged, reduced);
      __syncwarp();  // all lanes have read the state
      if (four.real) {
        float* const state = shared.state + row * (N + D) + four.at;
        state[0] += moves.x;
        state[1] += moves.y;
        state[2] += moves.z;
        state[3] += moves.w;
      }
      const float square = moves.x * moves.x + moves.y * moves.y + moves.z * moves.z + moves.w * moves.w;
      const float all = warp_sum(four.of_x ? square : 0);
      if (lane == 0) shared.speed[row] += sqrtf(all + p.cost_eps);
      if (step + 1 == p.steps) {
        const float largest =
            warp_max(fmaxf(fmaxf(fabsf(moves.x), fabsf(moves.y)), fmaxf(fabsf(moves.z), fabsf(moves.w))));
        if (lane == 0 && first_own + row < p.rows) p.residual[first_own + row] = largest;
      }
      hand_out<N, D>(shared, division, row, four);
    }
    sync_cluster();  // after the last step, too: no block ends while others read its memory
    if (step == p.steps) break;
  }

  for (int i = thread; i < own * (N + D); i += threads) {
    const int row = i / (N + D), column = i % (N + D), to = first_own + row, at = column - N;
    if (to >= p.rows) continue;
    if (column < p.coords) p.next_x[static_cast<int64_t>(to) * p.coords + column] = shared.state[i];
    if (at >= 0 && at < p.width) p.next_o[static_cast<int64_t>(to) * p.width + at] = shared.state[i];
  }
}

int round_up(int value, int to) {
  return (value + to - 1) / to * to;
}

template <int N, int D>
size_t shared_bytes(const Division& division, bool nudged) {
  return static_cast<size_t>(Shared<N, D>(nullptr, division, nudged).at - static_cast<char*>(nullptr));
}

struct Device {
  int capability = 0, processors = 0, shared = 0;
};

Device current_device() {
  int device = 0, major = 0;
  Device facts;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  cudaDeviceGetAttribute(&facts.processors, cudaDevAttrMultiProcessorCount, device);
  cudaDeviceGetAttribute(&facts.shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  facts.capability = 10 * major;
  return facts;
}

template <int N, int D>
cudaLaunchConfig_t launch_config(const Division& division, int clusters, bool nudged, cudaLaunchAttribute& attribute) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(clusters * division.cluster));
  config.blockDim = dim3(static_cast<unsigned>(division.warps() * 32));
  config.dynamicSmemBytes = shared_bytes<N, D>(division, nudged);
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = static_cast<unsigned>(division.cluster);
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  config.attrs = &attribute;
  config.numAttrs = division.cluster > 1 ? 1 : 0;
  return config;
}

// How many clusters run at once; a block fills a multiprocessor.
template <int N, int D>
int clusters_at_once(const Division& division, bool nudged, const Device& device) {
  if (division.cluster == 1) return device.processors;
  cudaLaunchAttribute attribute{};
  const cudaLaunchConfig_t config = launch_config<N, D>(division, 1, nudged, attribute);
  int count = 0;
  if (cudaOccupancyMaxActiveClusters(&count, geometric_relax<N, D>, &config) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  return count;
}

// Clock cycles that a step takes, roughly: of the tiles of slots and classes that a warp goes through, of the parts
// that it sums, and of the barriers. The constants were fitted to an H100; they only choose between divisions.
double cycles_of_step(const Division& division, int slots, int classes) {
  const int per_round = division.parts() * kTile, own = division.own_rows(), warps = division.warps();
  const int tiles = (slots + per_round - 1) / per_round, class_tiles = (classes + per_round - 1) / per_round;
  const double crowd = 1 + warps / 8.0;  // warps that share a scheduler
  const double barriers = division.cluster > 1 ? 3000 : 500;
  return crowd * (400 * tiles + 200 * class_tiles) + (own + warps - 1) / warps * (500 + 40 * division.parts()) +
         barriers;
}

// The fastest division that fits into shared memory; cluster 0: none does.
template <int N, int D>
Division search_division(const GeometricRelax& p) {
  const Device device = current_device();
  const bool nudged = p.readout != nullptr;
  Division best;
  if (device.capability < 80) return best;
  cudaFuncSetAttribute(geometric_relax<N, D>, cudaFuncAttributeMaxDynamicSharedMemorySize, device.shared);
  const int tiles = (p.rows + kTile - 1) / kTile;
  double least = 0;
  for (int cluster = 1; cluster <= (device.capability >= 90 ? kMostCluster : 1); cluster *= 2) {
    for (int slot_warps = 1; slot_warps <= kMostWarps; slot_warps *= 2) {
      for (int row_tiles = 1; row_tiles * slot_warps <= kMostWarps; ++row_tiles) {
        Division division{.row_tiles = row_tiles, .slot_warps = slot_warps, .cluster = cluster};
        const int parts = division.parts();
        division.slots = round_up((p.slots + cluster - 1) / cluster, kTile * slot_warps);
        const int class_tiles = nudged ? (p.classes + kTile - 1) / kTile : 0;
        division.classes = (class_tiles + parts - 1) / parts * slot_warps * kTile;
        if (shared_bytes<N, D>(division, nudged) > static_cast<size_t>(device.shared)) continue;
        const int at_once = clusters_at_once<N, D>(division, nudged, device);
        if (at_once == 0) continue;
        const int clusters = (tiles + row_tiles - 1) / row_tiles, waves = (clusters + at_once - 1) / at_once;
        const double cycles = waves * cycles_of_step(division, p.slots, nudged ? p.classes : 0);
        if (best.cluster == 0 || cycles < least) {
          best = division;
          least = cycles;
        }
      }
    }
  }
  return best;
}

// The same, searched once for each size.
template <int N, int D>
Division divide(const GeometricRelax& p) {
  static std::mutex mutex;
  static std::map<std::array<int, 4>, Division> known;
  int device = 0;
  cudaGetDevice(&device);
  const std::array<int, 4> key{device, p.rows, p.slots, p.readout != nullptr ? p.classes : -1};
  const std::lock_guard lock(mutex);
  const auto found = known.find(key);
  return found != known.end() ? found->second : known.emplace(key, search_division<N, D>(p)).first->second;
}

template <int N, int D>
cudaError_t start(const GeometricRelax& p, cudaStream_t stream) {
  const Division division = divide<N, D>(p);
  if (division.cluster == 0) return cudaErrorInvalidConfiguration;
  const int tiles = (p.rows + kTile - 1) / kTile, clusters = (tiles + division.row_tiles - 1) / division.row_tiles;
  cudaLaunchAttribute attribute{};
  cudaLaunchConfig_t config = launch_config<N, D>(division, clusters, p.readout != nullptr, attribute);
  config.stream = stream;
  return cudaLaunchKernelEx(&config, geometric_relax<N, D>, p, division);
}

template <int N, int D>
struct Padded {
  static constexpr int kCoords = N, kWidth = D;
};

template <int N, class With>
auto by_width(const GeometricRelax& p, const With& with) {
  return p.width <= 16 ? with(Padded<N, 16>()) : p.width <= 32 ? with(Padded<N, 32>()) : with(Padded<N, 64>());
}

// Calls `with` with the padded sizes as a type.
template <class With>
auto by_size(const GeometricRelax& p, const With& with) {
  return p.coords <= 16 ? by_width<16>(p, with) : by_width<32>(p, with);
}

}  // namespace

bool fits(const GeometricRelax& p) {
  if (p.coords > 32 || p.width > 64 || p.classes > kMostClasses || p.rows == 0 || p.slots == 0) return false;
  return by_size(p, [&](auto size) { return divide<size.kCoords, size.kWidth>(p).cluster > 0; });
}

cudaError_t launch(const GeometricRelax& p, cudaStream_t stream) {
  return by_size(p, [&](auto size) { return start<size.kCoords, size.kWidth>(p, stream); });
}

}  // namespace hrm::ops::cuda
