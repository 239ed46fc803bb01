#include "ops/sequence/cuda/conv_swiglu.h"

#include <algorithm>

#include "ops/cuda/by_element.cuh"
#include "ops/cuda/column_sum.cuh"
#include "ops/cuda/common.cuh"
#include "ops/cuda/early.cuh"
#include "ops/cuda/silu.cuh"

namespace hrm::ops::cuda {
namespace {

constexpr int kThreads = 256;
// Positions that a thread walks along at most. Each run reads one or two positions of its neighbours again.
constexpr int kRun = 16;
constexpr int kAhead = 2;  // positions whose values are in flight, forward
// Backward: a block has 32 packs of channels and 8 runs at a time.
constexpr int kLanes = 32, kSlices = kThreads / kLanes;
constexpr int kMostParts = 256;

// The runs that a sample's positions are cut into, of nearly one length.
struct Runs {
  int64_t count;   // of a sample
  int64_t length;  // of each but the last
};

Runs runs_of(int64_t length) {
  const int64_t count = (length + kRun - 1) / kRun, each = (length + count - 1) / count;
  return {(length + each - 1) / each, each};
}

// silu'(x), from s = sigmoid(x).
__device__ inline float silu_slope(float x, float s) {
  return s * (1.0f + x * (1.0f - s));
}

// Taps and biases of N channels.
template <int N>
struct Filter {
  float w0[N], w1[N], bias[N];

  __device__ inline Filter(const float* taps, const float* biases) {
    float pairs[2 * N];
    load_floats<2 * N>(taps, pairs);
    load_floats<N>(biases, bias);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      w0[k] = pairs[2 * k];
      w1[k] = pairs[2 * k + 1];
    }
  }
};

// A thread has N channels of one run of positions: it keeps u of the position before.
template <typename T, int N>
__global__ void __launch_bounds__(kThreads) conv_swiglu_forward(ConvSwigluForward p, Runs runs, int64_t total) {
  wait_for_earlier();
  const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (index >= total) return;
  const int64_t packs = p.width / N, channel = index % packs * N;
  const int64_t run = index / packs, row = run / runs.count;
  const int64_t first = run % runs.count * runs.length;
  const int64_t end = first + runs.length < p.length ? first + runs.length : p.length;
  const T* gate_up = static_cast<const T*>(p.gate_up) + row * p.length * 2 * p.width + channel;
  T* act = static_cast<T*>(p.act) + row * p.length * p.width + channel;
  const Filter<N> filter(p.taps + 2 * channel, p.bias + channel);

  float before[N] = {};
  if (first > 0) {
    const T* from = gate_up + (first - 1) * 2 * p.width;
    const Pack<T, N> gate = load_pack<T, N>(from), up = load_pack<T, N>(from + p.width);
#pragma unroll
    for (int k = 0; k < N; ++k) before[k] = silu<T>(to_float(gate.value[k])) * to_float(up.value[k]);
  }
#pragma unroll 1
  for (int64_t t = first; t < end; t += kAhead) {
    Pack<T, N> gate[kAhead], up[kAhead];
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (t + j < end) {
        const T* from = gate_up + (t + j) * 2 * p.width;
        gate[j] = load_pack<T, N>(from);
        up[j] = load_pack<T, N>(from + p.width);
      }
    }
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (t + j < end) {
        Pack<T, N> out;
#pragma unroll
        for (int k = 0; k < N; ++k) {
          const float u = silu<T>(to_float(gate[j].value[k])) * to_float(up[j].value[k]);
          out.value[k] = from_float<T>(silu<T>(filter.w0[k] * before[k] + filter.w1[k] * u + filter.bias[k]));
          before[k] = u;
        }
        store_pack<T, N>(act + (t + j) * p.width, out);
      }
    }
  }
}

// A thread walks along runs of N channels, one position ahead of the gradients that it writes: those of t need the
// gradient of c at t + 1.
template <typename T, int N>
struct BackwardWalk {
  float before[N];  // u of the position before
  float grad_c[N];  // of the position before
  Pack<T, N> gate, up;
  float sum0[N] = {}, sum1[N] = {}, sum_bias[N] = {};

  // Gradients of the position whose gate and up are held; grad_next: of c one position later.
  __device__ inline void write(T* to, int64_t width, const Filter<N>& filter, const float (&grad_next)[N]) const {
    Pack<T, N> grad_gate, grad_up;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const float x = to_float(gate.value[k]), grad_u = filter.w1[k] * grad_c[k] + filter.w0[k] * grad_next[k];
      grad_gate.value[k] = from_float<T>(grad_u * to_float(up.value[k]) * silu_slope(x, sigmoid<T>(x)));
      grad_up.value[k] = from_float<T>(grad_u * silu<T>(x));
    }
    store_pack<T, N>(to, grad_gate);
    store_pack<T, N>(to + width, grad_up);
  }

  // Positions first .. end - 1 of a sample. The pointers are those of its position 0 and these channels.
  __device__ inline void run(const T* gate_up, const T* grad_act, T* grad_gate_up, const Filter<N>& filter,
                             int64_t first, int64_t end, int64_t length, int64_t width) {
#pragma unroll
    for (int k = 0; k < N; ++k) before[k] = 0;
    if (first > 0) {
      const T* from = gate_up + (first - 1) * 2 * width;
      const Pack<T, N> earlier_gate = load_pack<T, N>(from), earlier_up = load_pack<T, N>(from + width);
#pragma unroll
      for (int k = 0; k < N; ++k) {
        before[k] = silu<T>(to_float(earlier_gate.value[k])) * to_float(earlier_up.value[k]);
      }
    }
    const int64_t last = end < length ? end : length - 1;  // one position more, where there is one
#pragma unroll 1
    for (int64_t t = first; t <= last; ++t) {
      const T* from = gate_up + t * 2 * width;
      const Pack<T, N> gate_t = load_pack<T, N>(from), up_t = load_pack<T, N>(from + width);
      const Pack<T, N> grad = load_pack<T, N>(grad_act + t * width);
      float u[N], grad_t[N];
#pragma unroll
      for (int k = 0; k < N; ++k) {
        u[k] = silu<T>(to_float(gate_t.value[k])) * to_float(up_t.value[k]);
        const float c = filter.w0[k] * before[k] + filter.w1[k] * u[k] + filter.bias[k];
        grad_t[k] = to_float(grad.value[k]) * silu_slope(c, sigmoid<T>(c));
      }
      if (t > first) write(grad_gate_up + (t - 1) * 2 * width, width, filter, grad_t);
      gate = gate_t;
      up = up_t;
#pragma unroll
      for (int k = 0; k < N; ++k) {
        if (t < end) {
          sum0[k] += grad_t[k] * before[k];
          sum1[k] += grad_t[k] * u[k];
          sum_bias[k] += grad_t[k];
        }
        before[k] = u[k];
        grad_c[k] = grad_t[k];
      }
    }
    if (end == length) {
      const float none[N] = {};
      write(grad_gate_up + (end - 1) * 2 * width, width, filter, none);
    }
  }
};

// Block (x, y) has the channels of x and every gridDim.y-th group of kSlices runs. All threads reach the barrier.
template <typename T, int N>
__global__ void __launch_bounds__(kThreads) conv_swiglu_backward(ConvSwigluBackward p, Runs runs) {
  wait_for_earlier();
  const int lane = static_cast<int>(threadIdx.x) % kLanes, slice = static_cast<int>(threadIdx.x) / kLanes;
  const int64_t first_channel = int64_t{blockIdx.x} * kLanes * N, channel = first_channel + lane * N;
  BackwardWalk<T, N> walk;
  if (channel < p.width) {
    const Filter<N> filter(p.taps + 2 * channel, p.bias + channel);
    const int64_t total = p.batch * runs.count;
    for (int64_t run = int64_t{blockIdx.y} * kSlices + slice; run < total; run += int64_t{gridDim.y} * kSlices) {
      const int64_t row = run / runs.count, first = run % runs.count * runs.length;
      const int64_t end = first + runs.length < p.length ? first + runs.length : p.length;
      const int64_t start = row * p.length * p.width;
      walk.run(static_cast<const T*>(p.gate_up) + 2 * start + channel,
               static_cast<const T*>(p.grad_act) + start + channel,
               static_cast<T*>(p.grad_gate_up) + 2 * start + channel, filter, first, end, p.length, p.width);
    }
  }
  if (p.partial == nullptr) return;
  __shared__ float sums[kSlices][3 * N][kLanes];
#pragma unroll
  for (int k = 0; k < N; ++k) {
    sums[slice][k][lane] = walk.sum0[k];
    sums[slice][N + k][lane] = walk.sum1[k];
    sums[slice][2 * N + k][lane] = walk.sum_bias[k];
  }
  __syncthreads();
  float* partial = p.partial + int64_t{blockIdx.y} * 3 * p.width;
  for (int i = static_cast<int>(threadIdx.x); i < 3 * N * kLanes; i += kThreads) {
    const int which = i / kLanes, kind = which / N;
    const int64_t of = first_channel + (i % kLanes) * N + which % N;
    if (of >= p.width) continue;
    float total = 0;
#pragma unroll
    for (int s = 0; s < kSlices; ++s) total += sums[s][which][i % kLanes];
    partial[kind < 2 ? 2 * of + kind : 2 * p.width + of] = total;
  }
}

template <typename T, int N>
cudaError_t start_packs(const ConvSwigluForward& p, cudaStream_t stream) {
  const Runs runs = runs_of(p.length);
  const int64_t total = p.batch * runs.count * (p.width / N), blocks = (total + kThreads - 1) / kThreads;
  if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;  // the grid's limit
  return start_early(&conv_swiglu_forward<T, N>, static_cast<unsigned>(blocks), kThreads, 0, stream, p, runs, total);
}

template <typename T, int N>
cudaError_t start_packs(const ConvSwigluBackward& p, cudaStream_t stream) {
  const int64_t lanes = (p.width / N + kLanes - 1) / kLanes;
  if (lanes > INT32_MAX) return cudaErrorInvalidConfiguration;  // the grid's limit
  const int parts = conv_swiglu_parts(p.batch, p.length);
  const dim3 blocks(static_cast<unsigned>(lanes), static_cast<unsigned>(parts));
  const cudaError_t error = start_early(&conv_swiglu_backward<T, N>, blocks, kThreads, 0, stream, p, runs_of(p.length));
  if (error != cudaSuccess || p.partial == nullptr) return error;
  return start_column_sum(p.partial, p.sums, parts, 3 * p.width, stream);
}

template <typename T>
cudaError_t start(const ConvSwigluForward& p, cudaStream_t stream) {
  constexpr int N = 16 / sizeof(T);
  const bool whole =
      p.width % N == 0 && aligned16(p.gate_up) && aligned16(p.act) && aligned16(p.taps) && aligned16(p.bias);
  return whole ? start_packs<T, N>(p, stream) : start_packs<T, 1>(p, stream);
}

// Four channels: a walk over eight needs more registers, and fewer blocks then fit on a multiprocessor.
template <typename T>
cudaError_t start(const ConvSwigluBackward& p, cudaStream_t stream) {
  constexpr int N = 4;
  const bool whole = p.width % N == 0 && aligned16(p.gate_up) && aligned16(p.grad_act) && aligned16(p.grad_gate_up) &&
                     aligned16(p.taps) && aligned16(p.bias);
  return whole ? start_packs<T, N>(p, stream) : start_packs<T, 1>(p, stream);
}

}  // namespace

int conv_swiglu_parts(int64_t batch, int64_t length) {
  const int64_t groups = (batch * runs_of(length).count + kSlices - 1) / kSlices;
  return static_cast<int>(std::min<int64_t>(groups, kMostParts));
}

cudaError_t launch(const ConvSwigluForward& params, cudaStream_t stream) {
  return by_element(params.element, [&](auto type) { return start<TypeIn<decltype(type)>>(params, stream); });
}

cudaError_t launch(const ConvSwigluBackward& params, cudaStream_t stream) {
  return by_element(params.element, [&](auto type) { return start<TypeIn<decltype(type)>>(params, stream); });
}

}  // namespace hrm::ops::cuda
