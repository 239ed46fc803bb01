#pragma once
// Attention over short sequences for Hopper. No torch headers.
//
// The parameters are those of ops/cuda/attention.h. A launch encodes its tensor maps on the host, starts one kernel on
// the stream and returns the launch's error. `fits` says whether a launch takes these sizes on the current device:
// head_dim 64, at most 128 positions.

#include "ops/cuda/attention.h"

namespace hrm::ops::cuda::sm90 {

bool fits(const AttentionForward& params);
bool fits(const AttentionBackward& params);
cudaError_t launch(const AttentionForward& params, cudaStream_t stream);
cudaError_t launch(const AttentionBackward& params, cudaStream_t stream);

}  // namespace hrm::ops::cuda::sm90
