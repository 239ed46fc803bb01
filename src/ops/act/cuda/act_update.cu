#include <algorithm>

#include "ops/act/cuda/act_update.h"
#include "ops/cuda/common.cuh"

namespace hrm::ops::cuda {
namespace {

constexpr int kAssignThreads = 1024;
constexpr int kAssignWarps = kAssignThreads / 32;
constexpr int kThreads = 256;
constexpr int kParts = 4;  // blocks that share a slot
constexpr int kCopyUnroll = 4;

// Halted slots take the rows from the cursor on, in slot order: a prefix sum over the flags.
__global__ void __launch_bounds__(kAssignThreads) assign_rows(ActBegin p) {
  __shared__ int in_warp[kAssignWarps];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  int64_t next = *p.cursor;  // the same in all threads
  for (int64_t first = 0; first < p.slots; first += kAssignThreads) {
    const int64_t slot = first + threadIdx.x;
    const bool takes = slot < p.slots && p.halted[slot];
    const unsigned flags = __ballot_sync(0xffffffffu, takes);
    if (lane == 0) in_warp[warp] = __popc(flags);
    __syncthreads();
    int before = __popc(flags & ((1u << lane) - 1u)), total = 0;
    for (int i = 0; i < kAssignWarps; ++i) {
      before += i < warp ? in_warp[i] : 0;
      total += in_warp[i];
    }
    if (takes) p.row[slot] = (next + before) % p.rows;
    next += total;
    __syncthreads();
  }
  if (threadIdx.x == 0) *p.cursor = next;
}

// value[0..width) rounded to T, again and again, over the elements `part`, `part` + kParts, ... of `count`.
template <typename T, int N>
__device__ inline void fill_rows(T* to, const float* value, int64_t width, int64_t count, int part) {
  for (int64_t i = (int64_t{part} * kThreads + threadIdx.x) * N; i < count; i += int64_t{kParts} * kThreads * N) {
    const int64_t column = i % width;
    Pack<T, N> pack;
#pragma unroll
    for (int k = 0; k < N; ++k) pack.value[k] = from_float<T>(value[column + k]);
    store_pack<T, N>(to + i, pack);
  }
}

template <typename T, int N>
__global__ void __launch_bounds__(kThreads) start_afresh(ActBegin p) {
  const int64_t slot = blockIdx.x;
  const auto part = static_cast<int>(blockIdx.y);
  if (!p.halted[slot]) return;
  const int64_t elements = p.positions * p.width;
  fill_rows<T, N>(static_cast<T*>(p.z_H) + slot * elements, p.H_init, p.width, elements, part);
  fill_rows<T, N>(static_cast<T*>(p.z_L) + slot * elements, p.L_init, p.width, elements, part);
  const int64_t row = p.cursor != nullptr ? p.row[slot] : slot;
  for (int64_t i = int64_t{part} * kThreads + threadIdx.x; i < p.tokens; i += int64_t{kParts} * kThreads) {
    p.inputs[slot * p.tokens + i] = p.new_inputs[row * p.tokens + i];
    p.labels[slot * p.tokens + i] = p.new_labels[row * p.tokens + i];
  }
  if (part == 0 && threadIdx.x == 0) {
    p.steps[slot] = 0;
    p.puzzle_identifiers[slot] = p.new_identifiers[row];
  }
}

__device__ inline void end_slot(const ActEnd& p, int64_t slot) {
  const int32_t steps = p.steps[slot] + 1;
  p.steps[slot] = steps;
  bool halts = steps >= p.max_steps;
  if (p.training && p.max_steps > 1) {
    const float q_halt = p.q[slot * p.q_slot], q_continue = p.q[slot * p.q_slot + p.q_head];
    const bool wants = p.no_continue ? q_halt > 0.0f : q_halt > q_continue;
    // The comparison of plain ATen: the probability is rounded to float32, as the number drawn.
    const bool explores = p.uniform[slot] < static_cast<float>(p.exploration);
    halts = (halts || wants) && (!explores || steps >= p.min_steps[slot]);
  }
  p.halted[slot] = halts;
}

// Words of kBytes; the first threads end the slots besides.
template <int kBytes>
__global__ void __launch_bounds__(kThreads) end_segment(ActEnd p, int64_t words) {
  using Word = Pack<uint8_t, kBytes>;
  const int64_t thread = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const bool first_carry = blockIdx.y == 0;
  if (first_carry && thread < p.slots) end_slot(p, thread);
  const int64_t first = int64_t{blockIdx.x} * (kThreads * kCopyUnroll) + threadIdx.x;
  const auto* from = static_cast<const Word*>(first_carry ? p.new_z_H : p.new_z_L);
  auto* to = static_cast<Word*>(first_carry ? p.z_H : p.z_L);
  Word word[kCopyUnroll];
#pragma unroll
  for (int j = 0; j < kCopyUnroll; ++j) {
    if (first + j * kThreads < words) word[j] = from[first + j * kThreads];
  }
#pragma unroll
  for (int j = 0; j < kCopyUnroll; ++j) {
    if (first + j * kThreads < words) to[first + j * kThreads] = word[j];
  }
}

template <typename T>
cudaError_t start(const ActBegin& p, cudaStream_t stream) {
  constexpr int N = 16 / sizeof(T);
  const dim3 blocks(static_cast<unsigned>(p.slots), kParts);
  if (p.width % N == 0 && aligned16(p.z_H) && aligned16(p.z_L)) {
    start_afresh<T, N><<<blocks, kThreads, 0, stream>>>(p);
  } else {
    start_afresh<T, 1><<<blocks, kThreads, 0, stream>>>(p);
  }
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch(const ActBegin& params, cudaStream_t stream) {
  if (params.slots > INT32_MAX) return cudaErrorInvalidConfiguration;  // the grid's limit
  if (params.cursor != nullptr) {
    assign_rows<<<1, kAssignThreads, 0, stream>>>(params);
    if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  }
  switch (params.element) {
    case Element::f32:
      return start<float>(params, stream);
    case Element::bf16:
      return start<__nv_bfloat16>(params, stream);
    case Element::f16:
      return start<__half>(params, stream);
  }
  return cudaErrorInvalidValue;
}

cudaError_t launch(const ActEnd& params, cudaStream_t stream) {
  const bool vector = params.carry_bytes % 16 == 0 && aligned16(params.z_H) && aligned16(params.z_L) &&
                      aligned16(params.new_z_H) && aligned16(params.new_z_L);
  const int64_t words = vector ? params.carry_bytes / 16 : params.carry_bytes / 2;  // all elements have 2 or 4 bytes
  const int64_t copy_blocks = (words + kThreads * kCopyUnroll - 1) / (kThreads * kCopyUnroll);
  const int64_t blocks = std::max(copy_blocks, (params.slots + kThreads - 1) / kThreads);
  if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;  // the grid's limit
  const dim3 grid(static_cast<unsigned>(blocks), 2);
  if (vector) {
    end_segment<16><<<grid, kThreads, 0, stream>>>(params, words);
  } else {
    end_segment<2><<<grid, kThreads, 0, stream>>>(params, words);
  }
  return cudaGetLastError();
}

}  // namespace hrm::ops::cuda
