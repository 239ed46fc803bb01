// Chooses how many blocks share a row.

#include <cstdint>

#include "ops/cuda/by_element.cuh"
#include "ops/decode/cuda/next_tokens_start.h"

namespace hrm::ops::cuda {
namespace {

constexpr int64_t kLongRow = 16384;  // ids; shorter rows are not shared

// As many blocks for a row as leave each a multiprocessor to itself: a second round costs more than sharing saves.
template <typename T>
cudaError_t start_by_rows(const NextTokens& p, cudaStream_t stream) {
  cudaFuncAttributes code{};
  cudaError_t error = next_tokens_attributes<T>(code);
  if (error != cudaSuccess) return error;
  int device = 0, processors = 0;
  error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) return error;
  const bool has_clusters = code.binaryVersion >= 90 && code.ptxVersion >= 90;
  if (has_clusters && p.vocabulary >= kLongRow) {
    if (p.rows * 8 <= processors) return start_next_tokens<T, 8>(p, stream);
    if (p.rows * 4 <= processors) return start_next_tokens<T, 4>(p, stream);
    if (p.rows * 2 <= processors) return start_next_tokens<T, 2>(p, stream);
  }
  return start_next_tokens<T, 1>(p, stream);
}

}  // namespace

cudaError_t launch(const NextTokens& params, cudaStream_t stream) {
  if (params.stops > kMostStops || params.vocabulary < 1 || params.vocabulary > INT32_MAX - kNextTokensThreads * 16) {
    return cudaErrorInvalidValue;
  }
  return by_element(params.element, [&](auto type) { return start_by_rows<TypeIn<decltype(type)>>(params, stream); });
}

}  // namespace hrm::ops::cuda
