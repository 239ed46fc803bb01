// The backward pass of attention over at most 128 positions. A block owns one head of one sequence. It recomputes the
// scores transposed, keys by queries, and each warp owns 16 keys. So the warp's registers already hold P^T and dS^T as
// left operands of dV = P^T dO and dK = dS^T Q. Only dS passes through shared memory, for dQ = dS K, where each warp
// owns 16 queries. No atomics: every sum has one owner and a fixed order.
#include "ops/attention/cuda/attention.cuh"
#include "ops/attention/cuda/attention.h"
#include "ops/attention/cuda/attention_start.cuh"

namespace hrm::ops::cuda {
namespace {

constexpr float kLog2e = 1.4426950408889634f;

template <int kHeadDim, int kTiles>
struct BackwardShared {
  static constexpr int kRows = kTiles * 16;
  static constexpr int kTileBytes = kRows * kHeadDim * 2;
  // dS^T: row = key, column = query. An odd number of 16-byte chunks per row avoids bank conflicts.
  static constexpr int kScoreRowBytes = kRows * 2 + 16;
  static constexpr int kQ = 0, kK = kTileBytes, kV = 2 * kTileBytes, kGradOut = 3 * kTileBytes;
  static constexpr int kScore = 4 * kTileBytes;
  static constexpr int kLse = kScore + kRows * kScoreRowBytes;  // times log2(e)
  static constexpr int kDelta = kLse + kRows * 4;               // sum over dimensions of grad_out * out
  static constexpr int kBytes = kDelta + kRows * 4;
};

// Rotates a warp's 16 rows of a gradient back by their positions, in float32.
template <int kHeadDim>
__device__ inline void turn_back(float (&grad)[kHeadDim / 8][4], const float* cos, const float* sin, int first_row,
                                 int length) {
  if (cos == nullptr) return;
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first_row + g + 8 * half;
    if (row >= length) continue;
#pragma unroll
    for (int n = 0; n < kHeadDim / 16; ++n) {
      const int at = row * (kHeadDim / 2) + n * 8 + 2 * t;
      const float2 c = __ldg(reinterpret_cast<const float2*>(cos + at));
      const float2 s = __ldg(reinterpret_cast<const float2*>(sin + at));
      turn(grad[n][2 * half], grad[n + kHeadDim / 16][2 * half], c.x, -s.x);
      turn(grad[n][2 * half + 1], grad[n + kHeadDim / 16][2 * half + 1], c.y, -s.y);
    }
  }
}

template <typename T, int kHeadDim, int kTiles>
__global__ void __launch_bounds__(kTiles * 32, 2) backward_kernel(AttentionBackward p) {
  using Shared = BackwardShared<kHeadDim, kTiles>;
  constexpr int kThreads = kTiles * 32;
  constexpr int kSteps = kHeadDim / 16;
  constexpr int kChunks = Tile<kHeadDim>::kChunks;
  extern __shared__ __align__(128) unsigned char shared[];
  unsigned char* const q = shared + Shared::kQ;
  unsigned char* const k = shared + Shared::kK;
  unsigned char* const v = shared + Shared::kV;
  unsigned char* const grad_out = shared + Shared::kGradOut;
  unsigned char* const score = shared + Shared::kScore;
  float* const lse = reinterpret_cast<float*>(shared + Shared::kLse);
  float* const delta = reinterpret_cast<float*>(shared + Shared::kDelta);

  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int g = lane / 4, t = lane % 4;
  const int64_t batch = blockIdx.x / p.heads;
  const int head = static_cast<int>(blockIdx.x % p.heads);
  const int64_t width = static_cast<int64_t>(p.heads) * kHeadDim;
  const int64_t qkv_offset = batch * p.length * 3 * width + head * kHeadDim;
  const int64_t out_offset = batch * p.length * width + head * kHeadDim;
  const T* const from = static_cast<const T*>(p.qkv) + qkv_offset;

  load_async<T, kHeadDim, kTiles>(from + 2 * width, 3 * width, p.length, shared_address(v));
  copy_async_commit();
  {
    const T* const grad_from = static_cast<const T*>(p.grad_out) + out_offset;
    const T* const out_from = static_cast<const T*>(p.out) + out_offset;
    constexpr int kRounds = kTiles * 16 * kChunks / kThreads;
    uint4 grad_data[kRounds], out_data[kRounds];
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      const int item = static_cast<int>(threadIdx.x) + i * kThreads;
      const int row = item / kChunks, chunk = item % kChunks;
      grad_data[i] = out_data[i] = make_uint4(0, 0, 0, 0);
      if (row < p.length) {
        grad_data[i] = load_once(grad_from + row * width + chunk * 8);
        out_data[i] = load_once(out_from + row * width + chunk * 8);
      }
    }
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      const int item = static_cast<int>(threadIdx.x) + i * kThreads;
      const int row = item / kChunks, chunk = item % kChunks;
      *reinterpret_cast<uint4*>(grad_out + Tile<kHeadDim>::at(row, chunk)) = grad_data[i];
      const auto* a = reinterpret_cast<const uint32_t*>(&grad_data[i]);
      const auto* b = reinterpret_cast<const uint32_t*>(&out_data[i]);
      float dot = 0;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float2 x = Pair<T>::unpack(a[j]), y = Pair<T>::unpack(b[j]);
        dot += x.x * y.x + x.y * y.y;
      }
#pragma unroll
      for (int offset = kChunks / 2; offset > 0; offset /= 2) dot += __shfl_xor_sync(0xffffffffu, dot, offset);
      if (chunk == 0) delta[row] = dot;
    }
  }
  // Queries past the end get the weight exp(0) and a zero gradient, so they add nothing.
  for (int row = static_cast<int>(threadIdx.x); row < kTiles * 16; row += kThreads) {
    lse[row] = row < p.length ? p.lse[static_cast<int64_t>(blockIdx.x) * p.length + row] * kLog2e : 0;
  }
  load_rotated<T, kHeadDim, kTiles>(from, from + width, 3 * width, p.length, p.cos, p.sin, q, k);
  copy_async_wait<0>();
  __syncthreads();

  const float scale = p.scale * kLog2e;
  float grad_k[kHeadDim / 8][4] = {}, grad_v[kHeadDim / 8][4] = {};
  {
    uint32_t k_part[kSteps][4], v_part[kSteps][4];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const uint32_t at = Tile<kHeadDim>::at(warp * 16 + lane % 16, 2 * step + lane / 16);
      load_matrices(k_part[step], shared_address(k) + at);
      load_matrices(v_part[step], shared_address(v) + at);
    }
#pragma unroll 1
    for (int tile = 0; tile < kTiles; ++tile) {
      // Keys by queries: the scores and the gradient of the weights.
      float s[2][4] = {}, dp[2][4] = {};
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const uint32_t at = Tile<kHeadDim>::at(tile * 16 + lane % 8 + lane / 16 * 8, 2 * step + lane / 8 % 2);
        uint32_t part[4];
        load_matrices(part, shared_address(q) + at);
        multiply<T>(s[0], k_part[step], part[0], part[1]);
        multiply<T>(s[1], k_part[step], part[2], part[3]);
        load_matrices(part, shared_address(grad_out) + at);
        multiply<T>(dp[0], v_part[step], part[0], part[1]);
        multiply<T>(dp[1], v_part[step], part[2], part[3]);
      }
      uint32_t weight[4], grad_score[4];
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const int column = tile * 16 + n * 8 + 2 * t;
        const float2 row_lse = *reinterpret_cast<const float2*>(lse + column);
        const float2 row_delta = *reinterpret_cast<const float2*>(delta + column);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          // Keys past the end get zero weight, whatever the other scores are.
          const bool valid = warp * 16 + g + 8 * half < p.length;
          const float a = valid ? exp2_approx(s[n][2 * half] * scale - row_lse.x) : 0;
          const float b = valid ? exp2_approx(s[n][2 * half + 1] * scale - row_lse.y) : 0;
          weight[2 * n + half] = Pair<T>::pack(a, b);
          grad_score[2 * n + half] =
              Pair<T>::pack(a * (dp[n][2 * half] - row_delta.x), b * (dp[n][2 * half + 1] - row_delta.y));
          *reinterpret_cast<uint32_t*>(score + (warp * 16 + g + 8 * half) * Shared::kScoreRowBytes + column * 2) =
              grad_score[2 * n + half];
        }
      }
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const uint32_t at = Tile<kHeadDim>::at(tile * 16 + lane % 16, 2 * step + lane / 16);
        uint32_t part[4];
        load_matrices_transposed(part, shared_address(grad_out) + at);
        multiply<T>(grad_v[2 * step], weight, part[0], part[1]);
        multiply<T>(grad_v[2 * step + 1], weight, part[2], part[3]);
        load_matrices_transposed(part, shared_address(q) + at);
        multiply<T>(grad_k[2 * step], grad_score, part[0], part[1]);
        multiply<T>(grad_k[2 * step + 1], grad_score, part[2], part[3]);
      }
    }
  }
  __syncthreads();

  // q, v and grad_out are not read below. Each warp stages its results in its own rows of them.
  T* const to = static_cast<T*>(p.grad_qkv) + qkv_offset;
  store_rows<T, kHeadDim>(grad_v, 1, 1, v, warp * 16, p.length, to + 2 * width, 3 * width);
  turn_back<kHeadDim>(grad_k, p.cos, p.sin, warp * 16, p.length);
  store_rows<T, kHeadDim>(grad_k, p.scale, p.scale, q, warp * 16, p.length, to + width, 3 * width);

  float grad_q[kHeadDim / 8][4] = {};
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    uint32_t grad_score[4];
    load_matrices_transposed(grad_score, shared_address(score) +
                                             (tile * 16 + lane % 8 + lane / 16 * 8) * Shared::kScoreRowBytes +
                                             (warp * 16 + lane / 8 % 2 * 8) * 2);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint32_t part[4];
      load_matrices_transposed(part,
                               shared_address(k) + Tile<kHeadDim>::at(tile * 16 + lane % 16, 2 * step + lane / 16));
      multiply<T>(grad_q[2 * step], grad_score, part[0], part[1]);
      multiply<T>(grad_q[2 * step + 1], grad_score, part[2], part[3]);
    }
  }
  turn_back<kHeadDim>(grad_q, p.cos, p.sin, warp * 16, p.length);
  store_rows<T, kHeadDim>(grad_q, p.scale, p.scale, grad_out, warp * 16, p.length, to, 3 * width);
}

}  // namespace

cudaError_t launch(const AttentionBackward& params, cudaStream_t stream) {
  return start_by_shape(params, [&](auto type, auto head_dim, auto tiles) {
    constexpr int kHeadDim = decltype(head_dim)::value, kTiles = decltype(tiles)::value;
    constexpr int kBytes = BackwardShared<kHeadDim, kTiles>::kBytes;
    return start_heads(&backward_kernel<TypeIn<decltype(type)>, kHeadDim, kTiles>, params, kTiles * 32, kBytes, stream);
  });
}

}  // namespace hrm::ops::cuda
