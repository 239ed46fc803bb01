#include "ops/cuda/by_element.cuh"
#include "ops/cuda/common.cuh"
#include "ops/cuda/early.cuh"
#include "ops/cuda/silu.cuh"
#include "ops/linear/cuda/swiglu.h"

namespace hrm::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kUnroll = 2;  // packs in flight in each thread

// Pack i of the output is in row i / packs. 32-bit indices: a 64-bit division costs more than the pack's memory.
template <typename T, int N, typename Index>
__global__ void __launch_bounds__(kThreads) forward(SwigluForward p, Index packs, Index total) {
  wait_for_earlier();
  const T* gate_up = static_cast<const T*>(p.gate_up);
  T* act = static_cast<T*>(p.act);
  const Index first = Index{blockIdx.x} * (kThreads * kUnroll) + threadIdx.x;
  Pack<T, N> gate[kUnroll], up[kUnroll];
#pragma unroll
  for (int j = 0; j < kUnroll; ++j) {
    const Index i = first + j * kThreads;
    if (i < total) {
      const T* from = gate_up + (int64_t{i} + int64_t{i / packs} * packs) * N;
      gate[j] = load_pack<T, N>(from);
      up[j] = load_pack<T, N>(from + p.width);
    }
  }
#pragma unroll
  for (int j = 0; j < kUnroll; ++j) {
    const Index i = first + j * kThreads;
    if (i < total) {
      Pack<T, N> out;
#pragma unroll
      for (int k = 0; k < N; ++k) out.value[k] = gated<T>(to_float(gate[j].value[k]), to_float(up[j].value[k]));
      store_pack<T, N>(act + int64_t{i} * N, out);
    }
  }
}

template <typename T, int N, typename Index>
__global__ void __launch_bounds__(kThreads) backward(SwigluBackward p, Index packs, Index total) {
  wait_for_earlier();
  const T* gate_up = static_cast<const T*>(p.gate_up);
  const T* grad_act = static_cast<const T*>(p.grad_act);
  T* grad_gate_up = static_cast<T*>(p.grad_gate_up);
  const Index first = Index{blockIdx.x} * (kThreads * kUnroll) + threadIdx.x;
  Pack<T, N> gate[kUnroll], up[kUnroll], grad[kUnroll];
#pragma unroll
  for (int j = 0; j < kUnroll; ++j) {
    const Index i = first + j * kThreads;
    if (i < total) {
      const T* from = gate_up + (int64_t{i} + int64_t{i / packs} * packs) * N;
      gate[j] = load_pack<T, N>(from);
      up[j] = load_pack<T, N>(from + p.width);
      grad[j] = load_pack<T, N>(grad_act + int64_t{i} * N);
    }
  }
#pragma unroll
  for (int j = 0; j < kUnroll; ++j) {
    const Index i = first + j * kThreads;
    if (i < total) {
      Pack<T, N> grad_gate, grad_up;
#pragma unroll
      for (int k = 0; k < N; ++k) {
        gated_gradient<T>(to_float(gate[j].value[k]), to_float(up[j].value[k]), to_float(grad[j].value[k]),
                          grad_gate.value[k], grad_up.value[k]);
      }
      T* to = grad_gate_up + (int64_t{i} + int64_t{i / packs} * packs) * N;
      store_pack<T, N>(to, grad_gate);
      store_pack<T, N>(to + p.width, grad_up);
    }
  }
}

template <typename T, int N, typename Index>
cudaError_t start_pass(const SwigluForward& p, unsigned blocks, Index packs, Index total, cudaStream_t stream) {
  return start_early(&forward<T, N, Index>, blocks, kThreads, 0, stream, p, packs, total);
}
template <typename T, int N, typename Index>
cudaError_t start_pass(const SwigluBackward& p, unsigned blocks, Index packs, Index total, cudaStream_t stream) {
  return start_early(&backward<T, N, Index>, blocks, kThreads, 0, stream, p, packs, total);
}

bool aligned(const SwigluForward& p) {
  return aligned16(p.gate_up) && aligned16(p.act);
}
bool aligned(const SwigluBackward& p) {
  return aligned16(p.gate_up) && aligned16(p.grad_act) && aligned16(p.grad_gate_up);
}

template <typename T, int N, typename Params>
cudaError_t start_packs(const Params& p, cudaStream_t stream) {
  const int64_t packs = p.width / N, total = p.rows * packs;
  const int64_t blocks = (total + kThreads * kUnroll - 1) / (kThreads * kUnroll);
  if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;  // the grid's limit
  if (total <= INT32_MAX) {
    return start_pass<T, N>(p, static_cast<unsigned>(blocks), static_cast<uint32_t>(packs),
                            static_cast<uint32_t>(total), stream);
  }
  return start_pass<T, N>(p, static_cast<unsigned>(blocks), packs, total, stream);
}

template <typename T, typename Params>
cudaError_t start(const Params& p, cudaStream_t stream) {
  constexpr int N = 16 / sizeof(T);
  return p.width % N == 0 && aligned(p) ? start_packs<T, N>(p, stream) : start_packs<T, 1>(p, stream);
}

}  // namespace

cudaError_t launch(const SwigluForward& params, cudaStream_t stream) {
  return by_element(params.element, [&](auto type) { return start<TypeIn<decltype(type)>>(params, stream); });
}

cudaError_t launch(const SwigluBackward& params, cudaStream_t stream) {
  return by_element(params.element, [&](auto type) { return start<TypeIn<decltype(type)>>(params, stream); });
}

}  // namespace hrm::ops::cuda
