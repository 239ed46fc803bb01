// A warp has 32 columns of grad_y, its block eight times as many of one slice, and goes through the rows in tiles
// of 16. A lane's 16 bytes are columns 8 part .. 8 part + 7 of row `group`: the factor a of grad_v = grad_y B as they
// are, and transposed the factor b of grad_B^T = u^T grad_y.
#include <algorithm>

#include "ops/adapters/cuda/lora.h"
#include "ops/cuda/by_element.cuh"
#include "ops/cuda/common.cuh"
#include "ops/cuda/early.cuh"
#include "ops/cuda/mma.cuh"

namespace hrm::ops::cuda {
namespace {

constexpr int kWarps = kLoraColumns / kLoraStrip;
constexpr int kThreads = kWarps * 32;
constexpr int kTileRows = 16;
constexpr int kWords = 4;                              // of 16 bytes
constexpr int64_t kMostChunk = 512, kLeastChunk = 64;  // rows of a block, multiples of the latter
// About two blocks for each multiprocessor: while one adds up its warps' sums, the other's elements are on their way.
constexpr int64_t kWantedBlocks = 240;

// Tiles whose elements are on their way together: what the registers and 48 KiB of shared memory allow.
template <int kRankTiles>
constexpr int kTilesAtOnce = kRankTiles == 1   ? 4
                             : kRankTiles == 2 ? 2
                                               : 1;
// Floats from one row of the warps' sums to the next in shared memory: 8 more than a multiple of 16, so that no two of
// a quarter of a warp meet in one bank.
template <int kRankTiles>
constexpr int kSumsPitch = 16 * kRankTiles + 8;

__host__ __device__ inline int strips_of(const LoraColumns& slice) {
  return (slice.columns + kLoraColumns - 1) / kLoraColumns;
}

int strips_of(const LoraGradients& p) {
  int strips = 0;
  for (int i = 0; i < p.slices; ++i) strips += strips_of(p.slice[i]);
  return strips;
}

int64_t chunk_of(const LoraGradients& p) {
  int64_t chunk = kMostChunk;
  const int64_t strips = strips_of(p);
  while (chunk > kLeastChunk && strips * ((p.rows + chunk - 1) / chunk) < kWantedBlocks) chunk -= kLeastChunk;
  while ((p.rows + chunk - 1) / chunk > 65535) chunk *= 2;
  return chunk;
}

int64_t chunks_of(const LoraGradients& p) {
  return (p.rows + chunk_of(p) - 1) / chunk_of(p);
}

template <typename T>
__device__ inline uint32_t pair_of(const T* low, const T* high) {
  return static_cast<uint32_t>(*reinterpret_cast<const uint16_t*>(low)) |
         static_cast<uint32_t>(*reinterpret_cast<const uint16_t*>(high)) << 16;
}

// v_parts (strips, rows, rank): sums over a block's columns. B_parts (chunks, rank, B_rows): over a block's rows.
template <typename T, int kRankTiles>
__global__ void __launch_bounds__(kThreads, kRankTiles == 1 ? 2 : 1) lora_parts(LoraGradients p, int chunk) {
  constexpr int kAtOnce = kTilesAtOnce<kRankTiles>, kPitch = kSumsPitch<kRankTiles>, kEights = 2 * kRankTiles;
  constexpr int kRowsAtOnce = kAtOnce * kTileRows;
  __shared__ __align__(16) float sums[kWarps * kRowsAtOnce * kPitch];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int group = lane / 4, part = lane % 4;
  int slice = 0, strip = static_cast<int>(blockIdx.x);
  while (strip >= strips_of(p.slice[slice])) strip -= strips_of(p.slice[slice++]);
  const int column = strip * kLoraColumns + warp * kLoraStrip;  // of the slice
  const bool has_columns = column < p.slice[slice].columns;
  const int64_t begin = int64_t{blockIdx.y} * chunk, end = min(begin + chunk, p.rows);
  wait_for_earlier();

  // B as the factor b: 16 columns of grad_y are the summands, eight ranks the columns.
  uint2 b[2][kEights];
  const int b_row = p.slice[slice].first + column;
#pragma unroll
  for (int step = 0; step < 2; ++step) {
#pragma unroll
    for (int eight = 0; eight < kEights; ++eight) {
      const int rank = 8 * eight + group;
      const T* from = static_cast<const T*>(p.B) + int64_t{b_row + 8 * part + 4 * step} * p.rank + rank;
      b[step][eight] = has_columns && rank < p.rank
                           ? uint2{pair_of(from, from + p.rank), pair_of(from + 2 * p.rank, from + 3 * p.rank)}
                           : uint2{};
    }
  }

  const int u_pitch = p.slices * p.rank;
  const T* u = static_cast<const T*>(p.u) + slice * p.rank + 2 * part;
  const T* grad_y = static_cast<const T*>(p.grad_y) + p.slice[slice].out + column + 8 * part;
  float grad_B[kRankTiles][kWords][4] = {};
  for (int64_t first = begin; first < end; first += kRowsAtOnce) {
    uint4 y[kAtOnce][2];
    uint32_t v[kAtOnce][2][kEights];
#pragma unroll
    for (int t = 0; t < kAtOnce; ++t) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int64_t row = first + t * kTileRows + half * 8 + group;
        y[t][half] = row < end && has_columns ? *reinterpret_cast<const uint4*>(grad_y + row * p.width) : uint4{};
#pragma unroll
        for (int eight = 0; eight < kEights; ++eight) {
          v[t][half][eight] = row < end && 8 * eight + 2 * part < p.rank && p.grad_B != nullptr
                                  ? *reinterpret_cast<const uint32_t*>(u + row * u_pitch + 8 * eight)
                                  : 0;
        }
      }
    }
#pragma unroll
    for (int t = 0; t < kAtOnce; ++t) {
      float* to = sums + (warp * kRowsAtOnce + t * kTileRows + group) * kPitch + 2 * part;
#pragma unroll
      for (int eight = 0; eight < kEights; ++eight) {
        float sum[4] = {};
#pragma unroll
        for (int step = 0; step < 2; ++step) {
          multiply<T>(sum, word(y[t][0], 2 * step), word(y[t][1], 2 * step), word(y[t][0], 2 * step + 1),
                      word(y[t][1], 2 * step + 1), b[step][eight].x, b[step][eight].y);
        }
        *reinterpret_cast<float2*>(to + 8 * eight) = {sum[0], sum[1]};
        *reinterpret_cast<float2*>(to + 8 * kPitch + 8 * eight) = {sum[2], sum[3]};
      }
    }
    if (p.grad_B != nullptr) {
#pragma unroll
      for (int t = 0; t < kAtOnce; ++t) {
        uint32_t b0[kWords], b1[kWords];
#pragma unroll
        for (int j = 0; j < kWords; ++j) {
          b0[j] = transposed(word(y[t][0], j));
          b1[j] = transposed(word(y[t][1], j));
        }
#pragma unroll
        for (int m = 0; m < kRankTiles; ++m) {
          const uint32_t a0 = transposed(v[t][0][2 * m]), a1 = transposed(v[t][0][2 * m + 1]);
          const uint32_t a2 = transposed(v[t][1][2 * m]), a3 = transposed(v[t][1][2 * m + 1]);
#pragma unroll
          for (int j = 0; j < kWords; ++j) multiply<T>(grad_B[m][j], a0, a1, a2, a3, b0[j], b1[j]);
        }
      }
    }
    __syncthreads();
    const int quads = p.rank / 4;
    for (int i = static_cast<int>(threadIdx.x); i < kRowsAtOnce * quads; i += kThreads) {
      const int row = i / quads, quad = i % quads;
      if (first + row >= end) break;
      float4 total{};
#pragma unroll
      for (int other = 0; other < kWarps; ++other) {
        const float4 one = *reinterpret_cast<const float4*>(sums + (other * kRowsAtOnce + row) * kPitch + 4 * quad);
        total.x += one.x, total.y += one.y, total.z += one.z, total.w += one.w;
      }
      *reinterpret_cast<float4*>(p.v_parts + ((blockIdx.x * p.rows + first + row) * quads + quad) * 4) = total;
    }
    __syncthreads();
  }

  if (p.grad_B == nullptr || !has_columns) return;
  float* parts = p.B_parts + int64_t{blockIdx.y} * p.rank * p.B_rows + b_row + 8 * part;
#pragma unroll
  for (int m = 0; m < kRankTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int rank = 16 * m + 8 * half + group;
      if (rank >= p.rank) continue;
      auto* to = reinterpret_cast<float4*>(parts + int64_t{rank} * p.B_rows);
      const auto& from = grad_B[m];
      to[0] = {from[0][2 * half], from[0][2 * half + 1], from[1][2 * half], from[1][2 * half + 1]};
      to[1] = {from[2][2 * half], from[2][2 * half + 1], from[3][2 * half], from[3][2 * half + 1]};
    }
  }
}

// The first `B_blocks` blocks add to grad_B, the others write grad_v; four numbers to a thread.
template <typename T>
__global__ void __launch_bounds__(kThreads) add_lora_parts(LoraGradients p, int chunks, unsigned B_blocks) {
  const int quads = p.rank / 4;
  wait_for_earlier();
  if (blockIdx.x < B_blocks) {
    const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
    if (i >= int64_t{p.B_rows} * quads) return;
    const int64_t row = i % p.B_rows, quad = i / p.B_rows;
    const float* from = p.B_parts + 4 * quad * p.B_rows + row;
    float4 sum{};
    for (int c = 0; c < chunks; ++c, from += int64_t{p.rank} * p.B_rows) {
      sum.x += from[0], sum.y += from[p.B_rows], sum.z += from[2 * int64_t{p.B_rows}],
          sum.w += from[3 * int64_t{p.B_rows}];
    }
    auto* to = reinterpret_cast<float4*>(p.grad_B + row * p.rank) + quad;
    const float4 before = *to;
    *to = {before.x + sum.x, before.y + sum.y, before.z + sum.z, before.w + sum.w};
    return;
  }
  const int64_t i = int64_t{blockIdx.x - B_blocks} * kThreads + threadIdx.x;
  if (i >= p.rows * p.slices * quads) return;
  const int64_t row = i / (p.slices * quads);
  const int within = static_cast<int>(i % (p.slices * quads)), slice = within / quads, quad = within % quads;
  int first = 0;
  for (int s = 0; s < slice; ++s) first += strips_of(p.slice[s]);
  float4 sum{};
  for (int strip = first; strip < first + strips_of(p.slice[slice]); ++strip) {
    const float4 one = *reinterpret_cast<const float4*>(p.v_parts + ((strip * p.rows + row) * quads + quad) * 4);
    sum.x += one.x, sum.y += one.y, sum.z += one.z, sum.w += one.w;
  }
  Pack<T, 4> result;
  result.value[0] = from_float<T>(p.scale * sum.x), result.value[1] = from_float<T>(p.scale * sum.y);
  result.value[2] = from_float<T>(p.scale * sum.z), result.value[3] = from_float<T>(p.scale * sum.w);
  store_pack<T, 4>(static_cast<T*>(p.grad_v) + 4 * i, result);
}

template <typename T, int kRankTiles>
cudaError_t start(const LoraGradients& p, cudaStream_t stream) {
  const int64_t chunk = chunk_of(p), chunks = chunks_of(p);
  const dim3 grid(static_cast<unsigned>(strips_of(p)), static_cast<unsigned>(chunks));
  const cudaError_t error =
      start_early(&lora_parts<T, kRankTiles>, grid, kThreads, 0, stream, p, static_cast<int>(chunk));
  if (error != cudaSuccess) return error;
  const auto blocks_for = [](int64_t quads) { return static_cast<unsigned>((quads + kThreads - 1) / kThreads); };
  const unsigned B_blocks = p.grad_B == nullptr ? 0 : blocks_for(int64_t{p.B_rows} * p.rank / 4);
  return start_early(&add_lora_parts<T>, B_blocks + blocks_for(p.rows * p.slices * p.rank / 4), kThreads, 0, stream, p,
                     static_cast<int>(chunks), B_blocks);
}

}  // namespace

bool fits(const LoraGradients& p) {
  if (p.element == Element::f32 || p.rows < 1 || p.rank < 4 || p.rank % 4 != 0 || p.rank > kMostLoraRank) return false;
  if (p.width % 8 != 0 || p.B_rows % 4 != 0 || p.slices < 1 || p.slices > kMostLoraSlices) return false;
  return std::all_of(p.slice, p.slice + p.slices, [](const LoraColumns& s) {
    return s.out % kLoraStrip == 0 && s.first % kLoraStrip == 0 && s.columns % kLoraStrip == 0;
  });
}

int64_t v_parts_size(const LoraGradients& p) {
  return strips_of(p) * p.rows * p.rank;
}

int64_t B_parts_size(const LoraGradients& p) {
  return chunks_of(p) * p.rank * p.B_rows;
}

cudaError_t launch(const LoraGradients& p, cudaStream_t stream) {
  if (!fits(p)) return cudaErrorInvalidValue;
  return by_half_element(p.element, [&](auto type) {
    using T = TypeIn<decltype(type)>;
    if (p.rank <= 16) return start<T, 1>(p, stream);
    if (p.rank <= 32) return start<T, 2>(p, stream);
    return start<T, 4>(p, stream);
  });
}

}  // namespace hrm::ops::cuda
