#include "ops/cuda/softmax_loss.h"

#include <cmath>
#include <type_traits>

#include "ops/cuda/by_element.cuh"
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

// That of the block from those of its threads, in every thread, always in the same order; one barrier.
template <typename T>
__device__ inline Softmax of_block(const Softmax& own) {
  static_assert(kWarps <= 32);
  __shared__ float warp_largest[kWarps], warp_sums[kWarps];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const auto join = [](Softmax part) {
    float largest = part.largest;
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, offset));
    }
    // Lanes without a logit have a largest of -inf and a sum of 0.
    const float sum = part.largest == -INFINITY && part.sum == 0 ? 0 : part.sum * power<float>(part.largest, largest);
    return Softmax{largest, warp_sum(sum)};
  };
  const Softmax of_warp = join(own);
  if (lane == 0) {
    warp_largest[warp] = of_warp.largest;
    warp_sums[warp] = of_warp.sum;
  }
  __syncthreads();
  return join(lane < kWarps ? Softmax{warp_largest[lane], warp_sums[lane]} : Softmax{-INFINITY, 0.0f});
}

__device__ inline int64_t label_of(const SoftmaxLoss& p, int64_t row) {
  return p.wide_labels ? static_cast<const int64_t*>(p.labels)[row] : static_cast<const int32_t*>(p.labels)[row];
}

// What is left of a row whose token has no label.
template <typename T>
__device__ inline void clear(const SoftmaxLoss& p, int64_t row, T* x) {
  if (threadIdx.x == 0) p.loss[row] = 0;
  if (p.weights == nullptr) return;
  for (int64_t v = threadIdx.x; v < p.vocab; v += kThreads) x[v] = from_float<T>(0.0f);
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
  const Softmax all = of_block<T>({largest, sum});
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

// A row that waits in shared memory for its sum, so that a multiprocessor holds several: while one is summed up,
// another one is read or written.
template <typename T>
__global__ void __launch_bounds__(kThreads, 3) by_shared(SoftmaxLoss p) {
  wait_for_earlier();
  constexpr int N = 16 / sizeof(T), kAhead = 4;
  extern __shared__ uint4 shared[];
  auto* const kept = reinterpret_cast<Pack<T, N>*>(shared);
  const int64_t row = blockIdx.x, label = label_of(p, row);
  T* const x = static_cast<T*>(p.logits) + row * p.pitch;
  if (label == kIgnored) return clear(p, row, x);
  const int packs = static_cast<int>(p.vocab / N);
  const float own = to_float(x[label]);
  // A thread reads again what it has written itself, so no barrier is needed for that.
  Softmax part{-INFINITY, 0.0f};
  for (int first = static_cast<int>(threadIdx.x); first < packs; first += kAhead * kThreads) {
    Pack<T, N> value[kAhead];
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      const int pack = first + j * kThreads;
      if (pack < packs) value[j] = load_pack<T, N>(x + int64_t{pack} * N);
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
  const Softmax all = of_block<T>(part);
  if (threadIdx.x == 0) p.loss[row] = all.largest + logf(all.sum) - own;
  if (p.weights == nullptr) return;
  const float weight = p.weights[row], scale = weight / all.sum;
  const int own_pack = static_cast<int>(label / N), own_element = static_cast<int>(label % N);
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
    store_pack<T, N>(x + int64_t{pack} * N, out);
  }
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

constexpr int64_t kStaticShared = 2 * kWarps * sizeof(float);

int64_t shared_limit() {
  int device = 0, limit = 0;
  const bool known = cudaGetDevice(&device) == cudaSuccess &&
                     cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) == cudaSuccess;
  return known ? limit : 0;
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
  const int64_t bytes = p.vocab * static_cast<int64_t>(sizeof(T));
  if (bytes + kStaticShared > shared_limit()) return run(&by_loop<T>);
  const cudaError_t error =
      cudaFuncSetAttribute(by_shared<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (error != cudaSuccess) return error;
  return start_early(&by_shared<T>, static_cast<unsigned>(p.rows), kThreads, static_cast<size_t>(bytes), stream, p);
}

}  // namespace

cudaError_t launch(const SoftmaxLoss& params, cudaStream_t stream) {
  return by_element(params.element, [&](auto type) { return start<TypeIn<decltype(type)>>(params, stream); });
}

}  // namespace hrm::ops::cuda
