// Dropout: a thread for each eight values, two blocks of random words, so that 16-bit values move 16 bytes at a time.

#include "hrm/base/philox.h"
#include "ops/cuda/by_element.cuh"
#include "ops/cuda/common.cuh"
#include "ops/dropout/cuda/dropout.h"

namespace hrm::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kEach = 8;  // values of a thread
constexpr int kWords = 4;

// kPack: values that one instruction moves.
template <typename T, int kPack>
__global__ void __launch_bounds__(kThreads) dropout_kernel(const Dropout p) {
  const int64_t first = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kEach;
  if (first >= p.count) return;
  const CounterRng rng(p.seed, Stream::dropout, static_cast<uint64_t>(*p.step));
  uint32_t words[kEach];
#pragma unroll
  for (int i = 0; i < kEach; i += kWords) rng.block(static_cast<uint32_t>((first + i) / kWords), words + i);
  const T* x = static_cast<const T*>(p.x) + first;
  const T* sum = static_cast<const T*>(p.sum) + first;
  T* out = static_cast<T*>(p.out) + first;
#pragma unroll
  for (int at = 0; at < kEach; at += kPack) {
    if (first + at >= p.count) return;  // with packs of more than one value the count is a multiple of them
    const Pack<T, kPack> values = load_pack<T, kPack>(x + at);
    Pack<T, kPack> added{};
    if (p.sum != nullptr) added = load_pack<T, kPack>(sum + at);
    Pack<T, kPack> result;
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      const float kept = words[at + i] >= p.threshold ? __fmul_rn(to_float(values.value[i]), p.scale) : 0.0f;
      result.value[i] = from_float<T>(p.sum != nullptr ? __fadd_rn(to_float(added.value[i]), kept) : kept);
    }
    store_pack<T, kPack>(out + at, result);
  }
}

}  // namespace

cudaError_t launch(const Dropout& p, cudaStream_t stream) {
  if (p.count == 0) return cudaSuccess;
  const int64_t blocks = (p.count + kEach * kThreads - 1) / (kEach * kThreads);
  return by_element(p.element, [&](auto type) {
    using T = TypeIn<decltype(type)>;
    constexpr int kPack = 16 / sizeof(T);
    const bool wide =
        p.count % kPack == 0 && aligned16(p.x) && aligned16(p.out) && (p.sum == nullptr || aligned16(p.sum));
    const auto grid = static_cast<unsigned>(blocks);
    if (wide) {
      dropout_kernel<T, kPack><<<grid, kThreads, 0, stream>>>(p);
    } else {
      dropout_kernel<T, 1><<<grid, kThreads, 0, stream>>>(p);
    }
    return cudaGetLastError();
  });
}

}  // namespace hrm::ops::cuda
