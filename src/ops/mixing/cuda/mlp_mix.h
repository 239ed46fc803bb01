#pragma once
// The border between the launcher, which knows tensors, and the kernels, which know pointers.

#include <cuda_runtime_api.h>

#include <cstdint>

namespace hrm::ops::cuda {

// Everything contiguous, 16-bit elements unless said: h, y (batch, length, width); weight_gate_up (2 * inner, length);
// weight_down (length, inner); rstd (batch, width) float32.
struct MlpMixForward {
  const void* h;
  const void* weight_gate_up;
  const void* weight_down;
  void* packed;  // scratch of mlp_mix_packed_bytes() bytes, aligned to 128
  void* y;
  float* rstd;  // or null: do not write
  int64_t batch, length, width, inner;
  float eps;
  bool half;  // float16, otherwise bfloat16
};

// Whether the fused kernels do this shape on the current device: Hopper (they use wgmma), length 1 to 128, width a
// multiple of 64, inner of 256. Pointers must be aligned to 16 bytes.
bool mlp_mix_fits(int64_t length, int64_t width, int64_t inner);

// Bytes of the weights in the order in which the kernel reads them.
int64_t mlp_mix_packed_bytes(int64_t length, int64_t inner);

// Packs the weights and starts the kernel, both on the stream. batch, width, inner at least 1.
cudaError_t launch(const MlpMixForward& params, cudaStream_t stream);

// As above; grad_y, grad_h as h. The weights' gradients, float32, are added to. One kernel (mlp_mix_fused.cuh) does the
// work up to 112 positions, where all of its blocks can run at once and can be shared out (plan_fused() decides);
// elsewhere two kernels take turns, part after part of the batch. Both ways give the same bits of grad_h.
struct MlpMixBackward {
  const void* grad_y;
  const void* h;
  const void* y;
  const float* rstd;
  const void* weight_gate_up;
  const void* weight_down;
  void* grad_h;
  float* grad_gate_up;
  float* grad_down;
  void* packed;    // the scratch, aligned to 128
  void* rows;      // gradient of gate and up, and silu(gate) * up: of the units at work, in turns of the part's
  void* images;    // h and the gradient of h + z, likewise
  float* partial;  // sums of the weights' gradients
  void* flags;     // of the one kernel: what is written, what is read
  int64_t batch, length, width, inner;
  int64_t part;      // of the batch in turns: samples, at least 1
  bool takes_turns;  // for tests: also where the one kernel could run
  bool half;
};

// Bytes of MlpMixBackward's scratch, by its sizes, part and takes_turns. flags is 0 where the kernels take turns.
struct MlpMixScratch {
  int64_t packed, rows, images, partial, flags;
};
MlpMixScratch mlp_mix_scratch(const MlpMixBackward& params);

cudaError_t launch(const MlpMixBackward& params, cudaStream_t stream);

}  // namespace hrm::ops::cuda
