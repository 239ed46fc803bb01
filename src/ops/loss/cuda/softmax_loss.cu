#include "ops/loss/cuda/softmax_loss.h"

#include <cmath>
#include <type_traits>

#include "ops/cuda/by_element.cuh"
#include "ops/cuda/cluster.cuh"
#include "ops/cuda/common.cuh"
#include "ops/cuda/early.cuh"
#include "ops/cuda/packed.cuh"

namespace hrm::ops::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int64_t kIgnored = -100;

// The largest of a block, in every thread.
__device__ inline float block_max(float value) {
  __shared__ float partial[kWarps];
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, offset));
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
  __syncthreads();
  float largest = partial[0];
#pragma unroll
  for (int warp = 1; warp < kWarps; ++warp) largest = fmaxf(largest, partial[warp]);
  __syncthreads();
  return largest;
}

constexpr float kLog2E = 1.44269504088896340736f;

// exp(x - largest). For 16-bit types by one multiplication and the fast power of two, which loses a few float32
// roundings; that of largest * kLog2E is in all terms of a row alike.
template <typename T>
__device__ inline float power(float x, float largest) {
  if constexpr (sizeof(T) == 4) {
    return expf(x - largest);
  } else {
    float out;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(fmaf(x, kLog2E, -largest * kLog2E)));
    return out;
  }
}

// A largest logit and the sum of exp(x - largest).
struct Softmax {
  float largest, sum;
};

// That of the warp from those of its lanes, in every lane. Lanes without a logit have a largest of -inf and a sum of 0.
__device__ inline Softmax of_warp(const Softmax& part) {
  float largest = part.largest;
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, offset));
  }
  const float sum = part.largest == -INFINITY && part.sum == 0 ? 0 : part.sum * power<float>(part.largest, largest);
  return {largest, warp_sum(sum)};
}

// That of the block from those of its threads, in every thread, always in the same order; one barrier.
__device__ inline Softmax of_block(const Softmax& own) {
  static_assert(kWarps <= 32);
  __shared__ float warp_largest[kWarps], warp_sums[kWarps];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const Softmax part = of_warp(own);
  if (lane == 0) {
    warp_largest[warp] = part.largest;
    warp_sums[warp] = part.sum;
  }
  __syncthreads();
  return of_warp(lane < kWarps ? Softmax{warp_largest[lane], warp_sums[lane]} : Softmax{-INFINITY, 0.0f});
}

// The K blocks that share a row: one, or a cluster.
template <int K>
__device__ inline int rank_of_block() {
  if constexpr (K > 1) return rank_in_cluster();
  return 0;
}

// That of all of them from each block's own, in every thread, always in the same order. No block may end before all
// have called read_by_all().
template <int K>
__device__ inline Softmax of_cluster(const Softmax& own) {
  if constexpr (K > 1) {
    __shared__ Softmax of_block;
    if (threadIdx.x == 0) of_block = own;
    sync_cluster();
    const int lane = static_cast<int>(threadIdx.x) % 32;
    return of_warp(lane < K ? *in_block_of_cluster(&of_block, lane) : Softmax{-INFINITY, 0.0f});
  }
  return own;
}
template <int K>
__device__ inline void read_by_all() {
  if constexpr (K > 1) sync_cluster();
}

__device__ inline int64_t label_of(const SoftmaxLoss& p, int64_t row) {
  return p.wide_labels ? static_cast<const int64_t*>(p.labels)[row] : static_cast<const int32_t*>(p.labels)[row];
}

// What is left of a row whose token has no label, by block `rank` of K.
template <typename T, int K = 1>
__device__ inline void clear(const SoftmaxLoss& p, int64_t row, T* x, int rank = 0) {
  if (rank == 0 && threadIdx.x == 0) p.loss[row] = 0;
  if (p.weights == nullptr) return;
  for (int64_t v = rank * kThreads + static_cast<int>(threadIdx.x); v < p.vocab; v += K * kThreads) {
    x[v] = from_float<T>(0.0f);
  }
}

// kPacks times 16 bytes of the row in each thread.
template <typename T, int kPacks>
__global__ void __launch_bounds__(kThreads) by_registers(SoftmaxLoss p) {
  wait_for_earlier();
  constexpr int N = 16 / sizeof(T);
  const int64_t row = blockIdx.x, label = label_of(p, row);
  T* const x = static_cast<T*>(p.logits) + row * p.pitch;
  if (label == kIgnored) return clear(p, row, x);
  const int thread = static_cast<int>(threadIdx.x), packs = static_cast<int>(p.vocab / N);
  Pack<T, N> value[kPacks];
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    const int pack = thread + i * kThreads;
    if (pack < packs) {
      value[i] = load_pack<T, N>(x + int64_t{pack} * N);
    } else {
#pragma unroll
      for (int k = 0; k < N; ++k) value[i].value[k] = from_float<T>(-INFINITY);
    }
  }
  const float own = to_float(x[label]);
  float largest = -INFINITY;
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
#pragma unroll
    for (int k = 0; k < N; ++k) largest = fmaxf(largest, to_float(value[i].value[k]));
  }
#pragma unroll
  for (int i = 0; i < kPacks; ++i) keep_packed(value[i]);
  // A thread without a logit subtracts no infinity from another one.
  const float shift = largest == -INFINITY ? 0 : largest;
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
#pragma unroll
    for (int k = 0; k < N; ++k) sum += power<T>(to_float(value[i].value[k]), shift);
  }
#pragma unroll
  for (int i = 0; i < kPacks; ++i) keep_packed(value[i]);
  const Softmax all = of_block({largest, sum});
  if (thread == 0) p.loss[row] = all.largest + logf(all.sum) - own;
  if (p.weights == nullptr) return;
  const float weight = p.weights[row], scale = weight / all.sum;
  const int own_pack = static_cast<int>(label / N), own_element = static_cast<int>(label % N);
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    const int pack = thread + i * kThreads;
    if (pack < packs) {
      float grad[N];
#pragma unroll
      for (int k = 0; k < N; ++k) grad[k] = power<T>(to_float(value[i].value[k]), all.largest) * scale;
      if (pack == own_pack) {
#pragma unroll
        for (int k = 0; k < N; ++k) grad[k] -= k == own_element ? weight : 0.0f;
      }
      Pack<T, N> out;
#pragma unroll
      for (int k = 0; k < N; ++k) out.value[k] = from_float<T>(grad[k]);
      store_pack<T, N>(x + int64_t{pack} * N, out);
    }
  }
}

// 16 bytes of a row of `packs` that each of K blocks keeps.
template <int K>
__host__ __device__ inline int64_t share_of(int64_t packs) {
  return (packs + K - 1) / K;
}

// A row that waits in shared memory for its sum, so that a multiprocessor holds several: while one is summed,
// another one is read or written. Of long rows each block of a cluster keeps a stretch.
template <typename T, int K>
__global__ void __launch_bounds__(kThreads, 3) by_shared(SoftmaxLoss p) {
  if constexpr (K > 1 && !kHasClusters) return;
  wait_for_earlier();
  constexpr int N = 16 / sizeof(T), kAhead = 4;
  extern __shared__ uint4 shared[];
  auto* const kept = reinterpret_cast<Pack<T, N>*>(shared);
  const int rank = rank_of_block<K>();
  const int64_t row = blockIdx.x / K, label = label_of(p, row);
  T* const x = static_cast<T*>(p.logits) + row * p.pitch;
  if (label == kIgnored) return clear<T, K>(p, row, x, rank);
  const int all_packs = static_cast<int>(p.vocab / N), share = static_cast<int>(share_of<K>(all_packs));
  const int begin = rank * share, packs = max(0, min(share, all_packs - begin));
  T* const stretch = x + int64_t{begin} * N;
  const float own = to_float(x[label]);
  // A thread reads again what it has written itself, so no barrier is needed for that.
  Softmax part{-INFINITY, 0.0f};
  for (int first = static_cast<int>(threadIdx.x); first < packs; first += kAhead * kThreads) {
    Pack<T, N> value[kAhead];
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      const int pack = first + j * kThreads;
      if (pack < packs) value[j] = load_pack<T, N>(stretch + int64_t{pack} * N);
    }
    float largest = part.largest;
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (first + j * kThreads >= packs) continue;
      kept[first + j * kThreads] = value[j];
#pragma unroll
      for (int k = 0; k < N; ++k) largest = fmaxf(largest, to_float(value[j].value[k]));
    }
    // No infinity is subtracted from another one.
    const float shift = largest == -INFINITY ? 0 : largest;
    part.sum *= power<T>(part.largest, shift);
    part.largest = largest;
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (first + j * kThreads >= packs) continue;
      keep_packed(value[j]);
#pragma unroll
      for (int k = 0; k < N; ++k) part.sum += power<T>(to_float(value[j].value[k]), shift);
    }
  }
  // After this all blocks have read the label's logit, which one of them overwrites.
  const Softmax all = of_cluster<K>(of_block(part));
  if (rank == 0 && threadIdx.x == 0) p.loss[row] = all.largest + logf(all.sum) - own;
  if (p.weights == nullptr) return read_by_all<K>();
  const float weight = p.weights[row], scale = weight / all.sum;
  const int own_pack = static_cast<int>(label / N) - begin, own_element = static_cast<int>(label % N);
#pragma unroll 2
  for (int pack = static_cast<int>(threadIdx.x); pack < packs; pack += kThreads) {
    const Pack<T, N> value = kept[pack];
    float grad[N];
#pragma unroll
    for (int k = 0; k < N; ++k) grad[k] = power<T>(to_float(value.value[k]), all.largest) * scale;
    if (pack == own_pack) {
#pragma unroll
      for (int k = 0; k < N; ++k) grad[k] -= k == own_element ? weight : 0.0f;
    }
    Pack<T, N> out;
#pragma unroll
    for (int k = 0; k < N; ++k) out.value[k] = from_float<T>(grad[k]);
    store_pack<T, N>(stretch + int64_t{pack} * N, out);
  }
  read_by_all<K>();
}

template <typename T>
__global__ void __launch_bounds__(kThreads) by_loop(SoftmaxLoss p) {
  wait_for_earlier();
  const int64_t row = blockIdx.x, label = label_of(p, row);
  T* const x = static_cast<T*>(p.logits) + row * p.pitch;
  if (label == kIgnored) return clear(p, row, x);
  const float own = to_float(x[label]);
  float largest = -INFINITY;
  for (int64_t v = threadIdx.x; v < p.vocab; v += kThreads) largest = fmaxf(largest, to_float(x[v]));
  largest = block_max(largest);
  float sum = 0;
  for (int64_t v = threadIdx.x; v < p.vocab; v += kThreads) sum += power<T>(to_float(x[v]), largest);
  sum = block_sum<kWarps>(sum);
  if (threadIdx.x == 0) p.loss[row] = largest + logf(sum) - own;
  if (p.weights == nullptr) return;
  const float weight = p.weights[row], scale = weight / sum;
  for (int64_t v = threadIdx.x; v < p.vocab; v += kThreads) {
    const float grad = power<T>(to_float(x[v]), largest) * scale;
    x[v] = from_float<T>(v == label ? grad - weight : grad);
  }
}

// What each of three blocks may have of a multiprocessor's 228 KiB, with some for static variables and for the system.
constexpr int64_t kRoomForThree = 76'000;
constexpr int64_t kStaticShared = (2 * kWarps + 2) * sizeof(float);

int64_t shared_limit() {
  int device = 0, limit = 0;
  const bool known = cudaGetDevice(&device) == cudaSuccess &&
                     cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) == cudaSuccess;
  return known ? limit : 0;
}

// Whether the device runs code that knows clusters.
template <typename T>
bool has_clusters() {
  cudaFuncAttributes code{};
  return cudaFuncGetAttributes(&code, &by_shared<T, 8>) == cudaSuccess && code.binaryVersion >= 90 &&
         code.ptxVersion >= 90;
}

template <typename T, int K>
int64_t shared_bytes(const SoftmaxLoss& p) {
  constexpr int N = 16 / sizeof(T);
  return share_of<K>(p.vocab / N) * 16;
}

template <typename T, int K>
cudaError_t start_shared(const SoftmaxLoss& p, cudaStream_t stream) {
  if (p.rows > INT32_MAX / K) return cudaErrorInvalidConfiguration;  // the grid's limit
  const auto bytes = static_cast<int>(shared_bytes<T, K>(p));
  const cudaError_t error = cudaFuncSetAttribute(by_shared<T, K>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return error;
  return start_early_clusters(&by_shared<T, K>, static_cast<unsigned>(p.rows * K), kThreads, static_cast<size_t>(bytes),
                              K, stream, p);
}

template <typename T>
cudaError_t start(const SoftmaxLoss& p, cudaStream_t stream) {
  constexpr int N = 16 / sizeof(T);
  if (p.rows > INT32_MAX) return cudaErrorInvalidConfiguration;  // the grid's limit
  const auto run = [&](auto kernel) {
    return start_early(kernel, static_cast<unsigned>(p.rows), kThreads, 0, stream, p);
  };
  const int64_t packs = (p.vocab / N + kThreads - 1) / kThreads;
  if (p.vocab % N != 0 || p.pitch % N != 0 || !aligned16(p.logits)) return run(&by_loop<T>);
  if (packs <= 1) return run(&by_registers<T, 1>);
  if (packs <= 2) return run(&by_registers<T, 2>);
  if (packs <= 4) return run(&by_registers<T, 4>);
  // As few blocks to a row as leave a multiprocessor room for three.
  if (shared_bytes<T, 1>(p) > kRoomForThree && has_clusters<T>()) {
    if (shared_bytes<T, 2>(p) <= kRoomForThree) return start_shared<T, 2>(p, stream);
    if (shared_bytes<T, 4>(p) <= kRoomForThree) return start_shared<T, 4>(p, stream);
    if (shared_bytes<T, 8>(p) + kStaticShared <= shared_limit()) return start_shared<T, 8>(p, stream);
  }
  return shared_bytes<T, 1>(p) + kStaticShared <= shared_limit() ? start_shared<T, 1>(p, stream) : run(&by_loop<T>);
}

}  // namespace

cudaError_t launch(const SoftmaxLoss& params, cudaStream_t stream) {
  return by_element(params.element, [&](auto type) { return start<TypeIn<decltype(type)>>(params, stream); });
}

}  // namespace hrm::ops::cuda
