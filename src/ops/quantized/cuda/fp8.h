#pragma once
// The border between the launchers, which know tensors, and the kernels that round to 8 bits, which know pointers.
//
// 8 bits are e4m3: stored = saturate(x * scale), at most 448 in size, rounded to nearest even; not-a-number stays so. A
// slot is the state of one quantised tensor: {scale, 1 / scale, amax, 0}. Kernels read the first two and raise amax to
// the largest |x| by an atomic maximum of its bits, whose result no order changes (not-a-number is above infinity).

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/element.h"

namespace hrm::ops::cuda {

constexpr float kFp8Largest = 448;
constexpr int kFp8SlotFloats = 4;

// Any size; moved by 16 bytes where the pointers are aligned to that.
struct QuantizeFp8 {
  const void* from;  // (size) f32, bf16 or f16
  void* to;          // (size) e4m3
  float* slot;
  int64_t size;
  Element element;
};

// Tensors of one launch. Everything travels as kernel arguments, of which CUDA allows 4 KiB on every GPU.
constexpr int kFp8MaxTensors = 128;
constexpr int64_t kFp8ElementsPerBlock = 16384;

// Tensor i has slot i.
struct QuantizeManyFp8 {
  const void* from[kFp8MaxTensors];
  void* to[kFp8MaxTensors];
  int64_t size[kFp8MaxTensors];
  int32_t
      first_block[kFp8MaxTensors + 1];  // block b works on the tensor i with first_block[i] <= b < first_block[i + 1]
  float* slots;
  int32_t count;  // tensors so far
  Element element;

  // count is below kFp8MaxTensors. An empty tensor gets no block.
  void add(const void* tensor_from, void* tensor_to, int64_t elements) {
    if (count == 0) first_block[0] = 0;
    from[count] = tensor_from;
    to[count] = tensor_to;
    size[count] = elements;
    first_block[count + 1] =
        first_block[count] + static_cast<int32_t>((elements + kFp8ElementsPerBlock - 1) / kFp8ElementsPerBlock);
    ++count;
  }
};
static_assert(sizeof(QuantizeManyFp8) <= 4096);

// sum = a + b, rounded; sum8 = that in e4m3. Any size.
struct AddFp8 {
  const void* a;  // (size) f32, bf16 or f16
  const void* b;
  void* sum;   // as a; may be a or b
  void* sum8;  // (size) e4m3
  float* slot;
  int64_t size;
  Element element;
};

// Per slot: the history moves by one place and takes amax in front, or its front again where amax is not finite;
// scale = 448 / 2^margin / (the largest of the history) where that is positive and finite, otherwise as before; amax =
// 0.
struct UpdateFp8Scales {
  float* slots;    // (count, slot_floats); of 8, the fourth is used in place of 448, and the fifth is 1 / scale, too
  float* history;  // (count, length), the newest in front
  int64_t count;
  int64_t length;
  float margin;
  int slot_floats;  // 4 or 8
};

// Start one kernel on the stream and return the error of the launch; with nothing to do, start none.
cudaError_t launch(const QuantizeFp8& params, cudaStream_t stream);
cudaError_t launch(const QuantizeManyFp8& params, cudaStream_t stream);
cudaError_t launch(const AddFp8& params, cudaStream_t stream);
cudaError_t launch(const UpdateFp8Scales& params, cudaStream_t stream);

}  // namespace hrm::ops::cuda
