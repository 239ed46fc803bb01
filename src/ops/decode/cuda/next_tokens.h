#pragma once
// The border between the launcher, which knows tensors, and the kernel, which knows pointers.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/element.h"

namespace hrm::ops::cuda {

struct NextTokens {
  const void* logits;  // rows `pitch` elements apart
  int64_t rows, vocabulary, pitch;
  Element element;
  bool greatest;  // temperature 0: what follows, to the draws, has no effect
  float inverse;  // 1 / temperature
  int64_t top_k;  // below the vocabulary; 0: all
  double top_p;
  float min_p;
  const double* draws;  // (rows, row_draws), of which count (if any) says the place
  int64_t row_draws;
  int64_t* tokens;  // (rows), or null: then all that follows is there
  const int64_t* limits;
  const int64_t* stop_ids;
  int64_t stops;  // at most 32
  int64_t* ids;
  int64_t* count;
  bool* active;
  int64_t* chosen;
  float* log_p;  // (rows), or null: log softmax of logits * inverse at the token, without filters; 0 of a row that is
                 // not active
};

constexpr int64_t kMostStops = 32;
// Starts the kernel on the stream and returns the error of the launch.
cudaError_t launch(const NextTokens& params, cudaStream_t stream);

}  // namespace hrm::ops::cuda
