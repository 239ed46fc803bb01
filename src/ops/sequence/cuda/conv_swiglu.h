#pragma once
// The border between the launcher, which knows tensors, and the kernel, which knows pointers.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/element.h"

namespace hrm::ops::cuda {

// Contiguous: gate_up (batch, length, 2 * width), act (batch, length, width), taps (width, 2), bias (width). batch,
// length and width at least 1.
struct ConvSwigluForward {
  const void* gate_up;
  const float* taps;
  const float* bias;
  void* act;
  int64_t batch, length, width;
  Element element;
};

struct ConvSwigluBackward {
  const void* grad_act;
  const void* gate_up;
  const float* taps;
  const float* bias;
  void* grad_gate_up;
  float* partial;  // (conv_swiglu_parts(batch, length), 3 * width) scratch; null: no gradients of taps and bias
  float* sums;     // (3 * width): gradients of taps (width, 2), then of bias (width); read only with `partial`
  int64_t batch, length, width;
  Element element;
};

// Rows of `partial`: it depends on the sizes alone, so that sums are always taken in one order.
int conv_swiglu_parts(int64_t batch, int64_t length);

// Start the kernels on the stream and return the error of the launch. 16 bytes (backward: four elements) at a time
// where the width allows and the pointers are aligned to 16 bytes, otherwise single elements.
cudaError_t launch(const ConvSwigluForward& params, cudaStream_t stream);
cudaError_t launch(const ConvSwigluBackward& params, cudaStream_t stream);

}  // namespace hrm::ops::cuda
