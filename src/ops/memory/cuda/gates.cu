#include "ops/memory/cuda/gates.h"

#include "ops/cuda/by_element.cuh"
#include "ops/cuda/common.cuh"
#include "ops/cuda/early.cuh"

namespace hrm::ops::cuda {
namespace {

constexpr int kWarps = 8;   // of a block that owns a row
constexpr int kLanes = 32;  // columns of a block of the weight's gradient
constexpr int kSlices = 32;

__device__ inline float sigmoid(float x) {
  return 1.0f / (1.0f + expf(-x));
}

// Rounded as in plain ATen, operation by operation, so that the clamp holds for the same rows. A not-a-number stays.
__device__ inline float before_clamp(float open, float scale, const float* warmup, float offset) {
  const float scaled = __fmul_rn(open, scale);
  return __fadd_rn(warmup == nullptr ? scaled : __fmul_rn(scaled, *warmup), offset);
}

__device__ inline float clamped(float x) {
  return x < 0.0f ? 0.0f : x > 1.0f ? 1.0f : x;
}

// A thread's part of x . weight, for `threads` of them.
template <typename T>
__device__ inline float part_of_product(const T* x, const float* weight, int64_t width, int thread, int threads) {
  float sum = 0;
#pragma unroll 4
  for (int64_t i = thread; i < width; i += threads) sum += to_float(x[i]) * weight[i];
  return sum;
}

// A block owns a row.
template <typename T, int N>
__global__ void __launch_bounds__(kWarps * 32) bridge_forward(BridgeGateForward p) {
  wait_for_earlier();
  const int64_t row = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x), threads = kWarps * 32;
  const T* z = static_cast<const T*>(p.z) + row * p.width;
  const float logit = block_sum<kWarps>(part_of_product(z, p.weight, p.width, thread, threads)) + *p.bias;
  const float open = sigmoid(logit), gate = clamped(before_clamp(open, p.scale, p.warmup, p.offset));
  if (thread == 0) {
    p.open[row] = open;
    p.gate[row] = gate;
  }
  const T* bridge = static_cast<const T*>(p.bridge) + row * p.inner;
  T* memory = static_cast<T*>(p.memory) + row * p.inner;
  for (int64_t i = int64_t{thread} * N; i < p.inner; i += threads * N) {
    Pack<T, N> pack = load_pack<T, N>(bridge + i);
#pragma unroll
    for (int k = 0; k < N; ++k) pack.value[k] = from_float<T>(gate * to_float(pack.value[k]));
    store_pack<T, N>(memory + i, pack);
  }
}

template <typename T, int N>
__global__ void __launch_bounds__(kWarps * 32) bridge_backward(BridgeGateBackward p) {
  wait_for_earlier();
  const int64_t row = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x), threads = kWarps * 32;
  const float open = p.open[row], scaled = before_clamp(open, p.scale, p.warmup, p.offset), gate = clamped(scaled);
  float grad = 0;
  if (p.grad_memory != nullptr) {
    const T* of_memory = static_cast<const T*>(p.grad_memory) + row * p.inner;
    const T* bridge = static_cast<const T*>(p.bridge) + row * p.inner;
    T* of_bridge = static_cast<T*>(p.grad_bridge) + row * p.inner;
    for (int64_t i = int64_t{thread} * N; i < p.inner; i += threads * N) {
      Pack<T, N> pack = load_pack<T, N>(of_memory + i);
      const Pack<T, N> other = load_pack<T, N>(bridge + i);
#pragma unroll
      for (int k = 0; k < N; ++k) {
        const float g = to_float(pack.value[k]);
        grad += g * to_float(other.value[k]);
        pack.value[k] = from_float<T>(gate * g);
      }
      store_pack<T, N>(of_bridge + i, pack);
    }
    grad = block_sum<kWarps>(grad);
  }
  if (p.grad_gate != nullptr) grad += p.grad_gate[row];
  if (p.warmup != nullptr) grad *= *p.warmup;
  const bool free = scaled >= 0.0f && scaled <= 1.0f;
  const float grad_logit = free ? grad * p.scale * (1.0f - open) * open : 0.0f;
  if (thread == 0) p.grad_logit[row] = grad_logit;
  T* grad_z = static_cast<T*>(p.grad_z) + row * p.width;
  for (int64_t i = thread; i < p.width; i += threads) grad_z[i] = from_float<T>(grad_logit * p.weight[i]);
}

// A warp owns a cycle's row.
template <typename T>
__global__ void __launch_bounds__(kWarps * 32) halt_forward(HaltForward p) {
  wait_for_earlier();
  const int64_t i = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (i >= p.cycles * p.rows) return;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const T* first = static_cast<const T*>(p.states[i / p.rows]) + i % p.rows * p.vectors * p.width;
  const float logit = warp_sum(part_of_product(first, p.weight, p.width, lane, 32)) + *p.bias;
  if (lane == 0) p.p[i] = sigmoid(logit);
}

// A block owns a cycle's row, whose vectors but the first get zeros.
template <typename T>
__global__ void __launch_bounds__(kWarps * 32) halt_backward(HaltBackward p) {
  wait_for_earlier();
  const int64_t i = blockIdx.x;
  const float open = p.p[i], grad = p.grad_p[i / p.rows * p.cycle_stride + i % p.rows * p.row_stride],
              grad_logit = grad * (1.0f - open) * open;
  if (threadIdx.x == 0) p.grad_logit[i] = grad_logit;
  const int64_t all = p.vectors * p.width;
  T* grad_state = static_cast<T*>(p.grad_states) + i * all;
  for (int64_t k = threadIdx.x; k < all; k += kWarps * 32) {
    grad_state[k] = from_float<T>(k < p.width ? grad_logit * p.weight[k] : 0.0f);
  }
}

// The gradient of weight and bias from those of the logits, of rows that lie `stride` elements apart in each of
// `parts` tensors.
struct WeightGradient {
  const void* x[kHaltCycles];
  int parts;
  int64_t rows, stride, width;
  const float* grad_logit;  // (parts, rows)
  float* grad_weight;       // or null
  float* grad_bias;         // or null
};

// The bias is one column more, of ones. A column's sum is shared by kSlices threads, and put together in one order.
template <typename T>
__global__ void __launch_bounds__(kLanes* kSlices) weight_gradient(WeightGradient p) {
  wait_for_earlier();
  __shared__ float slices[kSlices][kLanes + 1];
  const int lane = static_cast<int>(threadIdx.x) % kLanes, slice = static_cast<int>(threadIdx.x) / kLanes;
  const int64_t column = int64_t{blockIdx.x} * kLanes + lane;
  float total = 0;
  if (column <= p.width) {
    for (int part = 0; part < p.parts; ++part) {
      const T* x = static_cast<const T*>(p.x[part]);
      const float* grad_logit = p.grad_logit + part * p.rows;
#pragma unroll 4
      for (int64_t row = slice; row < p.rows; row += kSlices) {
        total += grad_logit[row] * (column < p.width ? to_float(x[row * p.stride + column]) : 1.0f);
      }
    }
  }
  slices[slice][lane] = total;
  __syncthreads();
  if (slice > 0 || column > p.width) return;
#pragma unroll
  for (int other = 1; other < kSlices; ++other) total += slices[other][lane];
  float* to = column < p.width ? p.grad_weight + column : p.grad_bias;
  if (column < p.width ? p.grad_weight != nullptr : p.grad_bias != nullptr) *to += total;
}

template <typename T>
cudaError_t start(const WeightGradient& p, cudaStream_t stream) {
  if (p.grad_weight == nullptr && p.grad_bias == nullptr) return cudaSuccess;
  const auto blocks = static_cast<unsigned>(p.width / kLanes + 1);
  return start_early(&weight_gradient<T>, blocks, kLanes * kSlices, 0, stream, p);
}

template <typename T>
cudaError_t start(const BridgeGateForward& p, cudaStream_t stream) {
  constexpr int N = 16 / sizeof(T);
  const auto blocks = static_cast<unsigned>(p.rows);
  const bool packs = p.inner % N == 0 && aligned16(p.bridge) && aligned16(p.memory);
  return packs ? start_early(&bridge_forward<T, N>, blocks, kWarps * 32, 0, stream, p)
               : start_early(&bridge_forward<T, 1>, blocks, kWarps * 32, 0, stream, p);
}

template <typename T>
cudaError_t start(const BridgeGateBackward& p, cudaStream_t stream) {
  constexpr int N = 16 / sizeof(T);
  const auto blocks = static_cast<unsigned>(p.rows);
  const bool packs = p.inner % N == 0 && aligned16(p.bridge) && aligned16(p.grad_memory) && aligned16(p.grad_bridge);
  const cudaError_t error = packs ? start_early(&bridge_backward<T, N>, blocks, kWarps * 32, 0, stream, p)
                                  : start_early(&bridge_backward<T, 1>, blocks, kWarps * 32, 0, stream, p);
  if (error != cudaSuccess) return error;
  return start<T>(WeightGradient{{p.z}, 1, p.rows, p.width, p.width, p.grad_logit, p.grad_weight, p.grad_bias}, stream);
}

template <typename T>
cudaError_t start(const HaltForward& p, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>((p.cycles * p.rows + kWarps - 1) / kWarps);
  return start_early(&halt_forward<T>, blocks, kWarps * 32, 0, stream, p);
}

template <typename T>
cudaError_t start(const HaltBackward& p, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(p.cycles * p.rows);
  const cudaError_t error = start_early(&halt_backward<T>, blocks, kWarps * 32, 0, stream, p);
  if (error != cudaSuccess) return error;
  WeightGradient of_weight{{},      p.cycles,     p.rows,        p.vectors * p.width,
                           p.width, p.grad_logit, p.grad_weight, p.grad_bias};
  for (int cycle = 0; cycle < p.cycles; ++cycle) of_weight.x[cycle] = p.states[cycle];
  return start<T>(of_weight, stream);
}

// One block.
__global__ void __launch_bounds__(kWarps * 32) halting_loss(HaltingLossForward p) {
  wait_for_earlier();
  const int thread = static_cast<int>(threadIdx.x), threads = kWarps * 32;
  float gates = 0, squares = 0;
  for (int64_t row = thread; row < p.rows; row += threads) {
    float sum = 0;
    for (int64_t cycle = 0; cycle < p.cycles; ++cycle) sum += p.halt[cycle * p.rows + row];
    const float excess = sum - p.target;
    p.slope[row] = excess;
    squares += excess * excess;
    gates += p.gate[row];
  }
  const auto rows = static_cast<float>(p.rows);
  const float gate = block_sum<kWarps>(gates) / rows;
  squares = block_sum<kWarps>(squares);
  if (thread == 0) *p.loss = gate * (squares / rows);
  for (int64_t row = thread; row < p.rows; row += threads) p.slope[row] *= gate * (2.0f / rows);
}

template <typename Params>
cudaError_t start_any(const Params& params, int64_t rows, cudaStream_t stream) {
  if (rows > INT32_MAX) return cudaErrorInvalidConfiguration;  // the grid's limit
  return by_element(params.element, [&](auto type) { return start<TypeIn<decltype(type)>>(params, stream); });
}

}  // namespace

cudaError_t launch(const BridgeGateForward& params, cudaStream_t stream) {
  return start_any(params, params.rows, stream);
}

cudaError_t launch(const BridgeGateBackward& params, cudaStream_t stream) {
  return start_any(params, params.rows, stream);
}

cudaError_t launch(const HaltForward& params, cudaStream_t stream) {
  return start_any(params, params.cycles * params.rows, stream);
}

cudaError_t launch(const HaltBackward& params, cudaStream_t stream) {
  return start_any(params, params.cycles * params.rows, stream);
}

cudaError_t launch(const HaltingLossForward& params, cudaStream_t stream) {
  return start_early(&halting_loss, 1, kWarps * 32, 0, stream, params);
}

}  // namespace hrm::ops::cuda
