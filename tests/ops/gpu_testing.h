#pragma once
// What the GPU tests share.

#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "ops/op_testing.h"

#define HRM_NEEDS_GPU() \
  if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device"

namespace hrm::ops::testing {

// Full float32 products while it lives: with TF32 a comparison in float32 would measure TF32.
class WithoutTf32 {
 public:
  WithoutTf32() : before_(at::globalContext().float32MatmulPrecision()) {
    at::globalContext().setFloat32MatmulPrecision("highest");
  }
  ~WithoutTf32() {
    at::globalContext().setFloat32MatmulPrecision(before_ == at::Float32MatmulPrecision::HIGHEST ? "highest"
                                                  : before_ == at::Float32MatmulPrecision::HIGH  ? "high"
                                                                                                 : "medium");
  }

 private:
  at::Float32MatmulPrecision before_;
};

// `work` captured after a warm-up on a side stream, as the trainer captures a step. Replays on that stream.
class Captured {
 public:
  template <class Work>
  explicit Captured(const Work& work) : stream_(c10::cuda::getStreamFromPool()) {
    at::cuda::device_synchronize();
    const c10::cuda::CUDAStreamGuard guard(stream_);
    for (int i = 0; i < 3; ++i) work();
    stream_.synchronize();
    graph_.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
    work();
    graph_.capture_end();
  }

  void replay() {
    at::cuda::device_synchronize();
    const c10::cuda::CUDAStreamGuard guard(stream_);
    graph_.replay();
    stream_.synchronize();
  }

 private:
  c10::cuda::CUDAStream stream_;
  at::cuda::CUDAGraph graph_;
};

}  // namespace hrm::ops::testing
