#pragma once
// The interface between the launcher, which sees tensors, and the kernels, which see pointers.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/element.h"

namespace hrm::ops::cuda {

// Shared by both directions. Row r of the projection is position r % length of sample r / length. Its rotation is in
// row r % table_rows of the tables.
struct QkvRows {
  const float* cos;  // (table_rows, head_dim / 2), or null: no rotation
  const float* sin;
  const float* q_weight;  // (head_dim), or null: no norm
  const float* k_weight;
  int64_t rows, table_rows;
  int heads, kv_heads, head_dim;
  float eps;
  Element element;
};

// The heads of q and k of row r begin at r * from_pitch and r * to_pitch.
struct QkvHeadsForward {
  QkvRows shape;
  const void* from;
  void* to;
  int64_t from_pitch, to_pitch;
};

struct QkvHeadsBackward {
  QkvRows shape;
  const void* grads[3];  // of q, k and v: the last dimension contiguous
  int64_t batch_stride[3], row_stride[3], head_stride[3];
  int64_t length;
  const void* qkv;     // contiguous rows; read only with a norm
  void* grad_qkv;      // contiguous rows
  float* partial;      // (2, kQkvParts, head_dim) scratch, with grad_weight
  float* grad_weight;  // (2, head_dim), q's and k's, or null: not needed, or no norm
};

// Number of partial sums of a weight's gradient before they are added up. A constant, so results do not depend on the
// GPU.
inline constexpr int kQkvParts = 1056;

// Whether the kernels support these sizes. Without a norm, all sizes. With a norm, 1, 2, 4, 8, 16 or 32 lanes of 2 x 16
// bytes must share a head.
bool qkv_heads_fit(const QkvRows& shape);

// Queue the kernels on the stream and return the launch error. They use 16-byte vectors if sizes and pointers allow;
// with a norm they must.
cudaError_t launch(const QkvHeadsForward& params, cudaStream_t stream);
cudaError_t launch(const QkvHeadsBackward& params, cudaStream_t stream);

}  // namespace hrm::ops::cuda
