// Sums of all parts, which the parts write into each other's memory. A block sends its elements to every part, says so,
// and adds when it has heard of all. In place of a collective, a pass of addition and one of a norm: what it takes is
// little more than the way to the other GPU and back (for a few rows, about as long as the launch of one more kernel).

#include "ops/cuda/by_element.cuh"
#include "ops/cuda/common.cuh"
#include "ops/cuda/early.cuh"
#include "ops/norm/cuda/add_pieces.cuh"

namespace hrm::ops::cuda {
namespace {

// What another GPU writes is not for the first-level cache.
__device__ inline uint4 load_shared(const void* from) {
  uint4 v;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from)
               : "memory");
  return v;
}
__device__ inline void store_shared(void* to, const uint4& v) {
  asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}
__device__ inline uint32_t load_acquire(const uint32_t* from) {
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}
__device__ inline void store_release(uint32_t* to, uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}

template <typename T, bool kAhead>
__global__ void __launch_bounds__(kPeerThreads) add_pieces_of_peers_kernel(AddPeerSums p, int64_t packs) {
  constexpr int N = 16 / sizeof(T);
  // All blocks are there when the next kernel begins, so it cannot take their room.
  if constexpr (kAhead) let_next_begin();
  wait_for_earlier();
  const int thread = static_cast<int>(threadIdx.x);
  const unsigned channel = blockIdx.x;
  PeerRoom& own = *p.rooms[p.part];
  const uint32_t number = own.count[channel] + 1;
  const unsigned turn = number % 2;
  const int64_t i = int64_t{channel} * kPeerThreads + thread;
  const bool inside = i < packs;
  const auto place = [&](int of, int from) -> void* { return &p.rooms[of]->data[turn][from][channel][16 * thread]; };
  const bool has_residual = p.residual != nullptr;
  uint4 mine{}, start{};
  if (inside) {
    mine = *reinterpret_cast<const uint4*>(static_cast<const T*>(p.sums) + i * N);
    if (has_residual) start = *reinterpret_cast<const uint4*>(static_cast<const T*>(p.residual) + i * N);
    for (int other = 0; other < p.parts; ++other) {
      if (other != p.part) store_shared(place(other, p.part), mine);
    }
  }
  __syncthreads();
  if (thread < p.parts && thread != p.part) {
    // Releases what all threads of the block have stored, since they met.
    store_release(&p.rooms[thread]->sent[channel][p.part], number);
    // The other part may have sent its next sums, into the other room, but none after those.
    while (static_cast<int32_t>(load_acquire(&own.sent[channel][thread]) - number) < 0) {
    }
  }
  if (thread == 0) own.count[channel] = number;
  __syncthreads();
  if (!inside) return;
  const auto piece = [&](int part) { return part == p.part ? mine : load_shared(place(p.part, part)); };
  if (!has_residual) start = piece(0);
  float sum[N];
#pragma unroll
  for (int k = 0; k < N; ++k) sum[k] = to_float(reinterpret_cast<const Pack<T, N>&>(start).value[k]);
  for (int part = has_residual ? 0 : 1; part < p.parts; ++part) {
    const uint4 bits = piece(part);
#pragma unroll
    for (int k = 0; k < N; ++k) sum[k] += to_float(reinterpret_cast<const Pack<T, N>&>(bits).value[k]);
  }
  store_sums<T, N, kAhead>(p.ahead, p.out, i * N, sum);
}

}  // namespace

bool fits(const AddPeerSums& p) {
  const int64_t item = p.element == Element::f32 ? 4 : 2, bytes = p.count * item;
  return p.parts >= 2 && p.parts <= kPeersMost && bytes > 0 && bytes % 16 == 0 &&
         bytes <= int64_t{kPeerChannelsMost} * kPeerChannelBytes && aligned16(p.sums) && aligned16(p.out) &&
         (p.residual == nullptr || aligned16(p.residual));
}

cudaError_t launch(const AddPeerSums& p, cudaStream_t stream) {
  if (!fits(p)) return cudaErrorInvalidValue;
  return by_element(p.element, [&](auto type) {
    using T = TypeIn<decltype(type)>;
    const int64_t packs = p.count / static_cast<int64_t>(16 / sizeof(T));
    const auto blocks = static_cast<unsigned>((packs + kPeerThreads - 1) / kPeerThreads);
    const auto kernel =
        p.ahead.norm != nullptr ? &add_pieces_of_peers_kernel<T, true> : &add_pieces_of_peers_kernel<T, false>;
    return start_early(kernel, blocks, kPeerThreads, 0, stream, p, packs);
  });
}

}  // namespace hrm::ops::cuda
