// Decoding attention by tensor cores: a block has all heads of queries of one row that share keys and values.
//
// The heads are the rows of a product of 16, of which eight may be heads. The other eight take what rounding the
// weights of the values to 16 bits leaves over, so that the weights count with twice the bits at no further cost. Warps
// take tiles of 16 positions in turn. Positions come by copies that no thread waits for, the first ones, where they
// are there already, while the kernel in front still runs; each warp copies its own tiles, so that none waits for
// others. The new position comes from the projection, not the cache, and is put together with what the warps have
// found in the end.
//
// Which warp has which position, and in what order they are summed, depends on the row's length alone.

#include "ops/decode/cuda/decode_attention_heads.h"

#include <algorithm>
#include <type_traits>

#include "ops/cuda/by_element.cuh"
#include "ops/cuda/common.cuh"
#include "ops/cuda/early.cuh"
#include "ops/cuda/matrix_copies.cuh"
#include "ops/cuda/mma.cuh"
#include "ops/cuda/sm90/tensor_map.h"
#include "ops/decode/cuda/decode_attention_shared.cuh"
#include "ops/linear/cuda/e4m3_pairs.cuh"
#include "ops/linear/cuda/sm90/skinny_gemm_tiles.h"

namespace hrm::ops::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * 32;
constexpr int kTile = 16;   // positions of a warp's tile
constexpr int kStages = 2;  // tiles of a warp that are under way
constexpr int kHeads = 8;   // of queries, at most

template <typename T>
__device__ inline uint32_t pair_of(T low, T high) {
  const T both[2] = {low, high};
  return *reinterpret_cast<const uint32_t*>(both);
}

template <int HD>
struct HeadsShared {
  static constexpr int kTileBytes = kTile * HD * 2;
  static constexpr int kPitch = HD + 8;  // elements from one head of q to the next: no two in one bank
  uint4 k[kWarps][kStages][kTileBytes / 16], v[kWarps][kStages][kTileBytes / 16];
};
template <int HD>
struct HeadsResults {  // in the tiles' place, when those are used up
  float value[kHeads][kWarps][HD], greatest[kHeads][kWarps], sum[kHeads][kWarps];
};

template <typename T, int HD>
__global__ void __launch_bounds__(kThreads, 3) decode_heads(DecodeAttention p) {
  using Shared = HeadsShared<HD>;
  constexpr int kChunks = HD / 8;                                  // of 16 bytes in a row
  constexpr int kLines = 128 / (HD * 2) > 1 ? 128 / (HD * 2) : 1;  // rows in 128 bytes
  constexpr int kMix = kChunks < 8 ? kChunks - 1 : 7;
  extern __shared__ __align__(128) uint4 shared_raw[];
  Shared& tiles = *reinterpret_cast<Shared*>(shared_raw);
  __shared__ __align__(16) T q_shared[kHeads][Shared::kPitch];
  __shared__ __align__(16) T k_shared[HD];
  __shared__ float own_score[kHeads];  // of the new position
  if (!p.steady) wait_for_earlier();
  const int heads = static_cast<int>(p.heads), kv_heads = static_cast<int>(p.kv_heads), share = heads / kv_heads;
  const int row = static_cast<int>(blockIdx.x) / kv_heads, kv = static_cast<int>(blockIdx.x) % kv_heads;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int group = lane / 4, part = lane % 4;
  const int64_t place = p.lengths[row];
  T* const keys = static_cast<T*>(p.keys) + row * p.key_row + kv * p.key_head;
  T* const values = static_cast<T*>(p.values) + row * p.value_row + kv * p.value_head;
  const int64_t begin = p.window > 0 && place + 1 > p.window ? place + 1 - p.window : 0;

  const CachePlaces in_cache(p.places, begin);
  const int count = static_cast<int>(place - begin);  // of the positions from the cache

  // Chunk c of a tile's row r is at chunk c ^ (r / kLines % 8): eight rows of one chunk are in all banks.
  const auto at = [&](int of_row, int chunk) {
    return static_cast<uint32_t>((of_row * kChunks + (chunk ^ (of_row / kLines & kMix))) * 16);
  };
  const uint32_t tiles_k = shared_address(tiles.k[warp]), tiles_v = shared_address(tiles.v[warp]);
  // Lanes have a chunk each of kRowsAtOnce rows; where it goes repeats itself after eight rows.
  constexpr int kRowsAtOnce = 32 / kChunks, kSame = kRowsAtOnce >= 8 * kLines ? 1 : 8 * kLines / kRowsAtOnce;
  constexpr int kCopies = kTile / kRowsAtOnce, kOffsets = kSame < kCopies ? kSame : kCopies;
  const int copy_row = lane / kChunks, copy_chunk = lane % kChunks;
  uint32_t copy_at[kOffsets];
#pragma unroll
  for (int j = 0; j < kOffsets; ++j) copy_at[j] = at(j * kRowsAtOnce + copy_row, copy_chunk);
  const auto load = [&](int stage, int first) {
    if (first < count) {
      const int left = min(count - first, kTile) - copy_row;
#pragma unroll
      for (int j = 0; j < kCopies; ++j) {
        const uint32_t to =
            copy_at[j % kOffsets] + stage * Shared::kTileBytes + j / kOffsets * kOffsets * kRowsAtOnce * HD * 2;
        const bool there = j * kRowsAtOnce < left;
        const int at_place = in_cache(there ? first + copy_row + j * kRowsAtOnce : first);
        const int64_t from = int64_t{at_place} * HD + copy_chunk * 8;
        copy_async(tiles_k + to, keys + from, there);
        copy_async(tiles_v + to, values + from, there);
      }
    }
    copy_async_commit();
  };
  constexpr int kTurn = kWarps * kTile;
  const int mine = warp * kTile;
#pragma unroll
  for (int stage = 0; stage < kStages; ++stage) load(stage, mine + stage * kTurn);
  if (p.steady) wait_for_earlier();

  const T* const projected = static_cast<const T*>(p.qkv) + int64_t{row} * (heads + 2 * kv_heads) * HD;
  const T* const new_value = projected + (heads + kv_heads + kv) * HD;
  const float *const cos = p.cos + place * (HD / 2), *const sin = p.sin + place * (HD / 2);
  for (int h = warp; h <= share; h += kWarps) {
    if (h == share) {
      prepare<T, HD>(projected + (heads + kv) * HD, p.k_weight, p.eps, cos, sin, k_shared, lane);
    } else {
      prepare<T, HD>(projected + (kv * share + h) * HD, p.q_weight, p.eps, cos, sin, q_shared[h], lane);
    }
  }
  __syncthreads();
  if (threadIdx.x < HD / 8) {
    const auto copy = [&](T* to, const T* from) {
      reinterpret_cast<uint4*>(to)[threadIdx.x] = reinterpret_cast<const uint4*>(from)[threadIdx.x];
    };
    copy(keys + int64_t{in_cache(count)} * HD, k_shared);
    copy(values + int64_t{in_cache(count)} * HD, new_value);
  }

  const float scale = rsqrtf(static_cast<float>(HD)) * kLog2e;
  uint32_t q[HD / 16][2];
#pragma unroll
  for (int c = 0; c < HD / 16; ++c) {
    const T* const from = &q_shared[group][16 * c + 2 * part];
    q[c][0] = group < share ? *reinterpret_cast<const uint32_t*>(from) : 0;
    q[c][1] = group < share ? *reinterpret_cast<const uint32_t*>(from + 8) : 0;
  }
  if (warp < share) {
    for (int h = warp; h < share; h += kWarps) {
      float dot = 0;
#pragma unroll
      for (int i = lane; i < HD; i += 32) dot += to_float(q_shared[h][i]) * to_float(k_shared[i]);
      dot = warp_sum(dot);
      if (lane == 0) own_score[h] = dot * scale;
    }
  }
  // Where lanes find the rows of the matrices of a tile: of keys for each four chunks, of values for each two.
  uint32_t k_at[2], v_at[4];
#pragma unroll
  for (int i = 0; i < 2; ++i) k_at[i] = at(lane % 8, (4 * i + lane / 8) % kChunks);
#pragma unroll
  for (int i = 0; i < 4; ++i) v_at[i] = at(lane % 16, (2 * i + lane / 16) % kChunks);
  float greatest = -INFINITY, sum = 0, mixed[HD / 8][4] = {};
  int stage = 0;
  for (int first = mine; first < count; first += kTurn) {
    copy_async_wait<kStages - 1>();
    __syncwarp();
    // Eight positions to a matrix, two of them with 16 elements each.
    float score[2][4] = {};
    const uint32_t from_k = tiles_k + stage * Shared::kTileBytes, from_v = tiles_v + stage * Shared::kTileBytes;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int c = 0; c < HD / 16; c += 2) {
        uint32_t k[4];
        load_matrices(k, from_k + k_at[c / 2 % 2] + half * 8 * HD * 2 + c / 4 * 128);
        multiply<T>(score[half], q[c][0], 0u, q[c][1], 0u, k[0], k[1]);
        multiply<T>(score[half], q[c + 1][0], 0u, q[c + 1][1], 0u, k[2], k[3]);
      }
    }
    float top = -INFINITY;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const bool there = first + 8 * half + 2 * part + e < count;
        score[half][e] = there ? score[half][e] * scale : -INFINITY;
        top = fmaxf(top, score[half][e]);
      }
    }
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
    top = fmaxf(top, greatest);
    const float before = exp2f(greatest - top);  // zero for the first tile, which has a position
    greatest = top;
    uint32_t weight[2][2];  // of each half, and what its rounding leaves over
    sum *= before;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float low = exp2f(score[half][0] - top), high = exp2f(score[half][1] - top);
      sum += low + high;
      const T first_of = from_float<T>(low), second = from_float<T>(high);
      weight[half][0] = pair_of(first_of, second);
      weight[half][1] = pair_of(from_float<T>(low - to_float(first_of)), from_float<T>(high - to_float(second)));
    }
#pragma unroll
    for (int d = 0; d < HD / 8; d += 2) {
      uint32_t v[4];
      load_matrices_transposed(v, from_v + v_at[d / 2 % 4] + d / 8 * 128);
#pragma unroll
      for (int e = 0; e < 2; ++e) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (first != mine) mixed[d + e][i] *= before;
        }
        multiply<T>(mixed[d + e], weight[0][0], weight[0][1], weight[1][0], weight[1][1], v[2 * e], v[2 * e + 1]);
      }
    }
    __syncwarp();
    load(stage, first + kStages * kTurn);  // what stood there has been used
    stage = stage + 1 == kStages ? 0 : stage + 1;
  }

  copy_async_wait<0>();
  __syncthreads();  // the tiles' place is free
  auto& results = *reinterpret_cast<HeadsResults<HD>*>(shared_raw);
  sum += __shfl_xor_sync(0xffffffffu, sum, 1);
  sum += __shfl_xor_sync(0xffffffffu, sum, 2);
  if (group < share) {
#pragma unroll
    for (int d = 0; d < HD / 8; ++d) {
      const float2 both = {mixed[d][0] + mixed[d][2], mixed[d][1] + mixed[d][3]};
      *reinterpret_cast<float2*>(&results.value[group][warp][8 * d + 2 * part]) = both;
    }
    if (part == 0) {
      results.greatest[group][warp] = greatest;
      results.sum[group][warp] = sum;
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < share * (HD / 2); i += kThreads) {
    const int h = i / (HD / 2), element = i % (HD / 2) * 2;
    const float own = own_score[h];
    float top = own;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) top = fmaxf(top, results.greatest[h][w]);
    float all = exp2f(own - top);
    float2 value = {all * to_float(new_value[element]), all * to_float(new_value[element + 1])};
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float weight = exp2f(results.greatest[h][w] - top);
      const float2 more = *reinterpret_cast<const float2*>(&results.value[h][w][element]);
      all += weight * results.sum[h][w];
      value = {value.x + weight * more.x, value.y + weight * more.y};
    }
    T* const out = static_cast<T*>(p.out) + (int64_t{row} * heads + kv * share) * HD + 2 * i;
    const T first = from_float<T>(value.x / all), second = from_float<T>(value.y / all);
    *reinterpret_cast<uint32_t*>(out) = pair_of(first, second);
    if constexpr (std::is_same_v<T, __nv_bfloat16>) {
      if (p.pairs.values != nullptr) {  // whole warps then go through this loop
        const float both[2] = {to_float(first), to_float(second)};
        store_pairs(p.pairs, (p.rows + 7) / 8 * 8, heads * HD, row, kv * share * HD + 2 * i, both, 0xffffffffu);
      }
    }
  }
}

template <typename T, int HD>
cudaError_t start(const DecodeAttention& p, cudaStream_t stream) {
  constexpr size_t kBytes = std::max(sizeof(HeadsShared<HD>), sizeof(HeadsResults<HD>));
  const auto kernel = &decode_heads<T, HD>;
  cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error == cudaSuccess) error = want_shared_memory(kernel);
  if (error != cudaSuccess) return error;
  return start_early(kernel, static_cast<unsigned>(p.rows * p.kv_heads), kThreads, kBytes, stream, p);
}

}  // namespace

bool fits_heads(const DecodeAttention& p) {
  int device = 0, major = 0;
  return p.element != Element::f32 && p.heads / p.kv_heads <= kHeads && decode_attention_fits(p.head_dim) &&
         cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess && major >= 8;
}

bool makes_pairs(const DecodeAttention& p) {
  const int64_t width = p.heads * p.head_dim;
  return fits_heads(p) && sm90::is_hopper() && p.element == Element::bf16 && p.rows <= sm90::kPairsRowsMost &&
         sm90::takes_pairs(width) && width / p.kv_heads % kPairsRun == 0;
}

cudaError_t launch_heads(const DecodeAttention& params, cudaStream_t stream) {
  if (!fits_heads(params)) return cudaErrorInvalidValue;
  return by_half_element(params.element, [&](auto type) {
    using T = TypeIn<decltype(type)>;
    if (params.head_dim == 32) return start<T, 32>(params, stream);
    if (params.head_dim == 64) return start<T, 64>(params, stream);
    return start<T, 128>(params, stream);
  });
}

}  // namespace hrm::ops::cuda
