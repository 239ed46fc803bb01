#pragma once
// What kernels that add pieces do with a thread's sums.

#include "ops/cuda/common.cuh"
#include "ops/norm/cuda/add_pieces.h"

namespace hrm::ops::cuda {

constexpr int kSquareColumns = 64;  // of the sums of squares

// Rounds the sums of N elements from `first` on, stores them, and prepares the norm behind them. With kAhead the
// threads of 64 columns call it together.
template <typename T, int N, bool kAhead>
__device__ inline void store_sums(const SumsAhead& ahead, void* out, int64_t first, const float (&sum)[N]) {
  Pack<T, N> rounded;
#pragma unroll
  for (int k = 0; k < N; ++k) rounded.value[k] = from_float<T>(sum[k]);
  store_pack<T, N>(static_cast<T*>(out) + first, rounded);
  if constexpr (kAhead) {
    constexpr int kGroup = kSquareColumns / N;  // threads
    static_assert(kGroup >= 1 && kGroup <= 32);
    const int64_t column = first % ahead.width;
    Pack<T, N> scaled;
    float squares = 0;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const float value = to_float(rounded.value[k]);
      squares += value * value;
      scaled.value[k] = from_float<T>(value * ahead.norm[column + k]);
    }
    store_pack<T, N>(static_cast<T*>(ahead.scaled) + first, scaled);
    const unsigned lane = threadIdx.x % 32;
    const unsigned group = (kGroup == 32 ? 0xffffffffu : (1u << kGroup) - 1) << (lane / kGroup * kGroup);
#pragma unroll
    for (int offset = kGroup / 2; offset > 0; offset /= 2) squares += __shfl_xor_sync(group, squares, offset);
    if (lane % kGroup == 0) ahead.squares[first / kSquareColumns] = squares;
  }
}

}  // namespace hrm::ops::cuda
