#include "ops/optim/cuda/grad_norm.h"

#include "ops/cuda/common.cuh"

namespace hrm::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kFinishThreads = 1024;
constexpr int kUnroll = 4;

// Sums are float64: the square of a float32 does not overflow, and the order of a sum can hardly be seen.
template <NormType kType>
__device__ inline void add(double& sum, float value) {
  if (kType == NormType::two) {
    sum = fma(static_cast<double>(value), static_cast<double>(value), sum);
  } else if (kType == NormType::one) {
    sum += fabsf(value);
  } else {
    const double size = fabsf(value);
    sum = size > sum || isnan(size) ? size : sum;
  }
}

template <NormType kType>
__device__ inline double join(double a, double b) {
  if (kType != NormType::infinity) return a + b;
  return a > b || isnan(a) ? a : b;
}

// In thread 0, always in the same order.
template <NormType kType, int kBlock>
__device__ inline double join_block(double value) {
  __shared__ double shared[kBlock];
  shared[threadIdx.x] = value;
  for (int half = kBlock / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) shared[threadIdx.x] = join<kType>(shared[threadIdx.x], shared[threadIdx.x + half]);
  }
  return threadIdx.x == 0 ? shared[0] : 0;
}

template <NormType kType, int N>
__device__ inline double add_range(const float* from, int64_t size) {
  constexpr int64_t kStride = int64_t{kThreads} * N;
  double sum = 0;
  int64_t i = int64_t{threadIdx.x} * N;
  for (; i + (kUnroll - 1) * kStride < size; i += kUnroll * kStride) {
    Pack<float, N> pack[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) pack[u] = load_pack<float, N>(from + i + u * kStride);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
      for (int k = 0; k < N; ++k) add<kType>(sum, pack[u].value[k]);
    }
  }
  for (; i < size; i += kStride) {
    const Pack<float, N> pack = load_pack<float, N>(from + i);
#pragma unroll
    for (int k = 0; k < N; ++k) add<kType>(sum, pack.value[k]);
  }
  return sum;
}

template <NormType kType>
__global__ void __launch_bounds__(kThreads) sum_kernel(const GradNormParams args) {
  const int64_t offset = int64_t{blockIdx.x} * kNormElementsPerBlock;
  const int64_t left = args.size - offset;
  const int64_t size = left < kNormElementsPerBlock ? left : kNormElementsPerBlock;
  const float* from = args.flat + offset;
  double sum;
  if (reinterpret_cast<uintptr_t>(from) % 16 == 0) {
    const int64_t whole = size / 4 * 4;
    sum = join<kType>(add_range<kType, 4>(from, whole), add_range<kType, 1>(from + whole, size - whole));
  } else {
    sum = add_range<kType, 1>(from, size);
  }
  sum = join_block<kType, kThreads>(sum);
  if (threadIdx.x == 0) args.partial[blockIdx.x] = sum;
}

template <NormType kType>
__global__ void __launch_bounds__(kFinishThreads) finish_kernel(const GradNormParams args) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < args.num_partial; i += kFinishThreads) sum = join<kType>(sum, args.partial[i]);
  sum = join_block<kType, kFinishThreads>(sum);
  if (threadIdx.x != 0) return;
  if (kType == NormType::two) sum = sqrt(sum);
  if (args.exact != nullptr) {
    *args.exact = sum;
    return;
  }
  const auto norm = static_cast<float>(args.loss_scale == nullptr ? sum : sum / *args.loss_scale);
  float clip = 1;
  if (args.max_norm > 0) {
    const float factor = 1 / (norm + 1e-6f) * args.max_norm;
    clip = factor < 1 || isnan(factor) ? factor : 1;
  }
  const float nonfinite = isfinite(norm) ? 0 : 1;
  *args.norm = norm;
  *args.coef = args.loss_scale == nullptr ? clip : clip / *args.loss_scale;
  *args.nonfinite = nonfinite;
  float skip = nonfinite;
  if (args.skip != nullptr) {
    const float before = *args.skip;
    skip = before > nonfinite || isnan(before) ? before : nonfinite;
    *args.skip = skip;
  }
  if (args.report != nullptr) {
    args.report[0] = norm;
    args.report[1] = norm * clip;
    args.report[2] = skip;
  }
}

template <NormType kType>
void start(const GradNormParams& params, cudaStream_t stream) {
  sum_kernel<kType><<<static_cast<unsigned>(params.num_partial), kThreads, 0, stream>>>(params);
  finish_kernel<kType><<<1, kFinishThreads, 0, stream>>>(params);
}

}  // namespace

cudaError_t launch(const GradNormParams& params, cudaStream_t stream) {
  switch (params.type) {
    case NormType::one:
      start<NormType::one>(params, stream);
      break;
    case NormType::two:
      start<NormType::two>(params, stream);
      break;
    case NormType::infinity:
      start<NormType::infinity>(params, stream);
      break;
  }
  return cudaGetLastError();
}

}  // namespace hrm::ops::cuda
