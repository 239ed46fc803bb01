#include "ops/cuda/adam_atan2.h"

#include "ops/cuda/common.cuh"

namespace hrm::ops::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void advance(float* step, const float* skip) {
  if (*skip == 0) *step += 1;
}

// What a block needs to know beside its elements.
struct Constants {
  float scale, keep, rate, correction2_sqrt, one_minus_beta1, beta2, one_minus_beta2;
};

__device__ inline void update(const Constants& c, float& p, float g, float& m, float& v) {
  g *= c.scale;
  m += (g - m) * c.one_minus_beta1;
  v = c.beta2 * v + c.one_minus_beta2 * g * g;
  p = p * c.keep - c.rate * atan2f(m, sqrtf(v) / c.correction2_sqrt);
}

template <int N>
__device__ void update_range(const Constants& c, float* p, const float* g, float* m, float* v, int64_t size) {
  for (int64_t i = int64_t{threadIdx.x} * N; i < size; i += int64_t{kThreads} * N) {
    Pack<float, N> p_pack = load_pack<float, N>(p + i);
    const Pack<float, N> g_pack = load_pack<float, N>(g + i);
    Pack<float, N> m_pack = load_pack<float, N>(m + i);
    Pack<float, N> v_pack = load_pack<float, N>(v + i);
#pragma unroll
    for (int k = 0; k < N; ++k) update(c, p_pack.value[k], g_pack.value[k], m_pack.value[k], v_pack.value[k]);
    store_pack<float, N>(p + i, p_pack);
    store_pack<float, N>(m + i, m_pack);
    store_pack<float, N>(v + i, v_pack);
  }
}

__device__ inline bool all_aligned(const void* a, const void* b, const void* c, const void* d) {
  return (reinterpret_cast<uintptr_t>(a) | reinterpret_cast<uintptr_t>(b) | reinterpret_cast<uintptr_t>(c) |
          reinterpret_cast<uintptr_t>(d)) %
             16 ==
         0;
}

__global__ void __launch_bounds__(kThreads) step_kernel(const __grid_constant__ AdamAtan2Params args) {
  if (*args.skip != 0) return;
  // The last tensor whose first block is not behind this one.
  const int block = static_cast<int>(blockIdx.x);
  int low = 0, high = args.count - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (args.first_block[middle] <= block) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  const int64_t offset = int64_t{block - args.first_block[low]} * kElementsPerBlock;
  const int64_t left = args.size[low] - offset;
  const int64_t size = left < kElementsPerBlock ? left : kElementsPerBlock;

  // 1 - beta^t = -expm1(t log beta): exact where beta^t is close to 1, which a float power is not.
  const float t = *args.step;
  const float lr = *args.lr;
  Constants c;
  c.scale = *args.grad_scale;
  c.keep = 1 - lr * args.weight_decay[low];
  c.rate = lr / -expm1f(t * args.log_beta1);
  c.correction2_sqrt = sqrtf(-expm1f(t * args.log_beta2));
  c.one_minus_beta1 = args.one_minus_beta1;
  c.beta2 = args.beta2;
  c.one_minus_beta2 = args.one_minus_beta2;

  float* p = args.param[low] + offset;
  const float* g = args.grad[low] + offset;
  float* m = args.exp_avg[low] + offset;
  float* v = args.exp_avg_sq[low] + offset;
  if (all_aligned(p, g, m, v)) {
    const int64_t whole = size / 4 * 4;
    update_range<4>(c, p, g, m, v, whole);
    update_range<1>(c, p + whole, g + whole, m + whole, v + whole, size - whole);
  } else {
    update_range<1>(c, p, g, m, v, size);
  }
}

}  // namespace

cudaError_t launch_advance(float* step, const float* skip, cudaStream_t stream) {
  advance<<<1, 1, 0, stream>>>(step, skip);
  return cudaGetLastError();
}

cudaError_t launch(const AdamAtan2Params& params, cudaStream_t stream) {
  step_kernel<<<static_cast<unsigned>(params.first_block[params.count]), kThreads, 0, stream>>>(params);
  return cudaGetLastError();
}

}  // namespace hrm::ops::cuda
