#pragma once
// Kernels of hrm/ops/selective_scan.h for bfloat16 and float16, heads of 64 channels and states of 64 or 128. See there
// for the letters. A row is cut into chunks of 64 positions, and into segments of whole chunks. Inside a segment one
// block carries the state from chunk to chunk in registers; where a row has several segments, `totals` first holds what
// each adds to the state, then the state with which it begins.

#include <cuda_runtime.h>

#include <cstdint>

#include "ops/cuda/element.h"

namespace hrm::ops::cuda {

constexpr int kScanChunk = 64;
constexpr int kScanChannels = 64;
constexpr int kScanSharedBytes = 116 * 1024;  // that a block may need

// x, grad_y, B, C: the last dimension is dense, all else a multiple of 16 bytes. In elements.
struct ScanView {
  const void* data;
  int64_t row, position, head;  // head: of B and C the group
};

struct ScanShape {
  int64_t rows;
  int length, heads, groups, state;
  int chunks;                    // of a row
  int segments, segment_chunks;  // of a row; chunks of a segment but the last
  Element element;
};

// What the positions of a chunk weigh for one head. sum: s_i, the sum of dt * A up to and with i, times log2(e).
struct alignas(16) ScanWeights {
  float dt[kScanChunk];
  float sum[kScanChunk];
  float start[kScanChunk];  // exp(s_i)
  float end[kScanChunk];    // exp(s_last - s_i)
  float whole;              // exp(s_last)
  float log_whole;          // s_last * log2(e)
  float unused[2];
};

struct ScanWeigh {
  ScanShape shape;
  ScanView dt;  // any strides
  const float* A;
  ScanWeights* weights;  // (rows, chunks, heads)
};

// The state's way through the segments. Direction 0 goes from left to right: the states of x and B. Direction 1, of the
// backward pass, from right to left: the gradients of the states, of grad_y and C.
struct ScanStates {
  ScanShape shape;
  ScanView left[2], right[2];
  const ScanWeights* weights;
  const float* first[2];  // (rows, heads, 64, state): the state at the first chunk of a direction; null: zeros
  float* totals;          // (directions, rows, heads, segments, 64 * state) in the order of the kernels' registers
  float* decays;          // (directions, rows, heads, segments): log2 of a segment's decay
  void* entries;  // (directions, rows, heads, chunks, 64, state): the state before each chunk. Null: fill totals
  float* last;    // (rows, heads, 64, state): what direction 1 ends with, the gradient of the initial state
  int directions;
};

// From what each segment adds to the states with which they begin.
struct ScanPass {
  ScanShape shape;
  const float* first[2];
  float* totals;
  const float* decays;
  int directions;
};

struct ScanOutput {
  ScanShape shape;
  ScanView x, B, C;
  const ScanWeights* weights;
  const float* D;
  const float* first;   // with one segment: initial_state, or null
  const float* totals;  // with several
  void* y;              // (rows, length, heads, 64)
  float* final_state;   // (rows, heads, 64, state)
};

struct ScanBackward {
  ScanShape shape;
  ScanView grad_y, x, B, C;
  const ScanWeights* weights;
  const float* A;
  const float* D;
  const void* entries;  // of both directions
  void* grad_x;         // (rows, length, heads, 64)
  float* grad_dt;       // (rows, length, heads)
  void* grad_B;         // (rows, length, groups, state); used where parts == 1
  void* grad_C;
  float* partial_B;  // (parts, rows, length, groups, state); used where parts > 1
  float* partial_C;
  float2* partial_heads;  // (rows * chunks, heads): of A and D
  int parts;              // blocks that share the heads of a group
};

struct ScanSums {
  ScanShape shape;
  const float* partial_B;  // null where parts == 1
  const float* partial_C;
  void* grad_B;
  void* grad_C;
  int parts;
  const float2* partial_heads;
  float* grad_A;
  float* grad_D;
};

cudaError_t launch(const ScanWeigh& p, cudaStream_t stream);
cudaError_t launch(const ScanStates& p, cudaStream_t stream);
cudaError_t launch(const ScanPass& p, cudaStream_t stream);
cudaError_t launch(const ScanOutput& p, cudaStream_t stream);
cudaError_t launch(const ScanBackward& p, cudaStream_t stream);
cudaError_t launch(const ScanSums& p, cudaStream_t stream);

}  // namespace hrm::ops::cuda
