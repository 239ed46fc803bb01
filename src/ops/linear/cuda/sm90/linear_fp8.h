#pragma once
// Matrix products of e4m3 operands, for Hopper. No torch headers.
//
// A quantised tensor q stands for q * slot[1], where its slot holds {scale, 1 / scale, amax, 0} in device memory; the
// kernels read it when they run. One that writes a quantised tensor stores value * scale, rounded to nearest even and
// saturated at +-448, and raises slot[2] to the largest |value| (as bits: a NaN counts as the largest). Products are
// rounded to `element`, bf16 or f16, before anything else is done to them.
//
// Every `launch` encodes its tensor maps on the host, starts one kernel on the stream and returns the launch's error.
// Rows of all tensors are contiguous and follow each other; tensors are aligned to 16 bytes. `fits` says whether a
// launch takes these sizes on the current device.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/element.h"

namespace hrm::ops::cuda::sm90 {

// out = x * weight^T. inner a multiple of 16, width of 8.
struct LinearFp8 {
  const void* x;       // (rows, inner), e4m3
  const void* weight;  // (width, inner), e4m3
  const float* x_slot;
  const float* weight_slot;
  void* out;  // (rows, width), of `element`
  int64_t rows;
  int64_t width;
  int64_t inner;
  Element element;
};

bool fits(const LinearFp8& params);
cudaError_t launch(const LinearFp8& params, cudaStream_t stream);

// act = silu(x * W_gate^T) * (x * W_up^T), weight = [W_gate; W_up]; silu is rounded to `element`, and so is act before
// it is quantised. inner a multiple of 16, width of 128.
struct LinearSwigluFp8 {
  const void* x;       // (rows, inner), e4m3
  const void* weight;  // (2 * width, inner), e4m3
  const float* x_slot;
  const float* weight_slot;
  float* act_slot;
  void* act;      // (rows, width), e4m3
  void* gate_up;  // (rows, 2 * width) of `element`, the products, or null: not kept
  int64_t rows;
  int64_t width;
  int64_t inner;
  Element element;
};

bool fits(const LinearSwigluFp8& params);
cudaError_t launch(const LinearSwigluFp8& params, cudaStream_t stream);

}  // namespace hrm::ops::cuda::sm90
