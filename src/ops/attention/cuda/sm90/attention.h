#pragma once
// Attention over short sequences for Hopper. No torch headers.
//
// The parameters are those of ops/attention/cuda/attention.h. A launch encodes its tensor maps on the host, queues one
// kernel on the stream and returns the launch error. `fits` says whether a launch supports these sizes on the current
// device: head_dim 64, at most 128 positions.

#include "ops/attention/cuda/attention.h"

namespace hrm::ops::cuda::sm90 {

// Projection and attention in one kernel, without a gradient. h: (batch, length, inner). The projection has no bias,
// and its result is qkv of AttentionForward. Gives the same bits as the two ops. head_dim 64, inner 512, 65 to 104
// positions. A block works on whole samples, or on a share of their heads, so it needs enough of them to keep all
// multiprocessors busy.
struct AttentionProjected {
  const void* h;
  const void* weight;  // (3 * heads * 64, inner)
  const float* cos;    // like AttentionForward
  const float* sin;
  void* out;  // (batch, length, heads, 64)
  int64_t batch;
  int64_t inner;
  int heads;
  int length;
  float scale;
  Element element;
};

bool fits(const AttentionForward& params);
bool fits(const AttentionBackward& params);
bool fits(const AttentionProjected& params);
// Whether the multiprocessors are busy most of the time. Otherwise the two separate kernels are faster.
bool pays(const AttentionProjected& params);
cudaError_t launch(const AttentionForward& params, cudaStream_t stream);
cudaError_t launch(const AttentionBackward& params, cudaStream_t stream);
cudaError_t launch(const AttentionProjected& params, cudaStream_t stream);

}  // namespace hrm::ops::cuda::sm90
