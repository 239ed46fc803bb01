#pragma once
// The border between the launcher, which knows tensors, and the kernel, which knows pointers.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/element.h"

namespace hrm::ops::cuda {

// Logit v of position l of sample b is at b * logits_sample + l * logits_row + v; the label of that position at
// b * tokens + l - first, for l in first..first+tokens-1. samples and vocab at least 1.
struct TokenLossForward {
  const void* logits;
  const int32_t* labels;
  void* loss;  // (samples), double when wide, otherwise float
  int32_t* labelled;
  int32_t* right;
  int64_t samples, logits_sample, logits_row;
  int tokens, first, vocab;
  bool softmax;
  bool wide;  // stablemax in float64
  Element element;
};

// The gradient of logit v of position l of sample b is at (b * positions + l) * grad_row + v.
struct TokenLossBackward {
  const void* grad_loss;  // (samples), double when wide, otherwise float; apart by grad_loss_stride, which may be 0
  const void* logits;
  const int32_t* labels;
  void* grad;
  int64_t grad_loss_stride;
  int64_t samples, logits_sample, logits_row, grad_row;
  int positions, tokens, first, vocab;
  bool softmax;
  bool wide;
  Element element;
};

// Start the kernel on the stream and return the error of the launch. A block works on a sample; a thread on a token
// with at most 64 logits, otherwise a warp.
cudaError_t launch(const TokenLossForward& params, cudaStream_t stream);
cudaError_t launch(const TokenLossBackward& params, cudaStream_t stream);

}  // namespace hrm::ops::cuda
