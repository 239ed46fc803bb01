#pragma once
// The border between the launcher, which knows tensors, and the kernel, which knows pointers.

#include <cuda_runtime_api.h>

#include <cstdint>

namespace hrm::ops::cuda {

// q_halt of slot b is at b * q_slot, q_continue q_head further.
struct ActQTarget {
  const float* q;
  int64_t q_slot, q_head;
  const int32_t* steps;
  float* target;
  int64_t max_steps, slots;
};

struct ActLossForward {
  const void* token_loss;  // double when wide, otherwise float
  const int32_t* labelled;
  const int32_t* right;
  const float* q;
  int64_t q_slot, q_head;
  const float* target;  // or null
  const int32_t* steps;
  const bool* halted;
  void* loss;       // double when wide, otherwise float
  double* metrics;  // 8 sums
  int64_t slots;
  bool wide;
};

struct ActLossBackward {
  const void* grad_loss;  // double when wide, otherwise float
  const int32_t* labelled;
  const int32_t* right;
  const float* q;
  int64_t q_slot, q_head;
  const float* target;  // or null: the gradient of q_continue is 0
  float* grad_q;        // (slots, 2)
  int64_t slots;
  bool wide;
};

// Start the kernel on the stream and return the error of the launch. The sums are made by one block.
cudaError_t launch(const ActQTarget& params, cudaStream_t stream);
cudaError_t launch(const ActLossForward& params, cudaStream_t stream);
cudaError_t launch(const ActLossBackward& params, cudaStream_t stream);

}  // namespace hrm::ops::cuda
