#pragma once
// The border between the launcher, which knows tensors, and the kernels, which know pointers. See hrm/ops/gates.h for
// the letters.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/element.h"

namespace hrm::ops::cuda {

constexpr int kHaltCycles = 32;  // of one launch

// All contiguous. rows, width at least 1; inner = P * D.
struct BridgeGateForward {
  const void* z;        // (rows, width)
  const float* weight;  // (width)
  const float* bias;
  const float* warmup;  // or null: 1
  const void* bridge;   // (rows, inner)
  float* gate;          // (rows)
  float* open;          // (rows)
  void* memory;         // (rows, inner)
  int64_t rows, width, inner;
  float scale, offset;
  Element element;
};

struct BridgeGateBackward {
  const float* grad_gate;   // (rows), or null
  const void* grad_memory;  // (rows, inner), or null
  const void* z;
  const float* weight;
  const float* warmup;
  const void* bridge;
  const float* open;
  void* grad_z;        // (rows, width)
  void* grad_bridge;   // (rows, inner); null without grad_memory
  float* grad_logit;   // (rows): scratch
  float* grad_weight;  // (width), added to, or null
  float* grad_bias;    // added to, or null
  int64_t rows, width, inner;
  float scale, offset;
  Element element;
};

// `states` of cycles contiguous tensors (rows, vectors, width); p (cycles, rows).
struct HaltForward {
  const void* states[kHaltCycles];
  const float* weight;
  const float* bias;
  float* p;
  int cycles;
  int64_t rows, vectors, width;
  Element element;
};

struct HaltBackward {
  const float* grad_p;  // (cycles, rows), its strides as given
  int64_t cycle_stride, row_stride;
  const float* p;
  const void* states[kHaltCycles];
  const float* weight;
  void* grad_states;   // (cycles, rows, vectors, width)
  float* grad_logit;   // (cycles, rows): scratch
  float* grad_weight;  // (width), added to, or null
  float* grad_bias;    // added to, or null
  int cycles;
  int64_t rows, vectors, width;
  Element element;
};

struct HaltingLossForward {
  const float* halt;  // (cycles, rows)
  const float* gate;  // (rows)
  float* loss;
  float* slope;  // (rows)
  int64_t cycles, rows;
  float target;
};

// Start the kernels on the stream and return the error of the launch. One kernel each; the backward passes a second one
// where there is a grad_weight or grad_bias.
cudaError_t launch(const BridgeGateForward& params, cudaStream_t stream);
cudaError_t launch(const BridgeGateBackward& params, cudaStream_t stream);
cudaError_t launch(const HaltForward& params, cudaStream_t stream);
cudaError_t launch(const HaltBackward& params, cudaStream_t stream);
cudaError_t launch(const HaltingLossForward& params, cudaStream_t stream);

}  // namespace hrm::ops::cuda
