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

// For what two algorithms of the library make of the same 16-bit numbers.
inline void expect_near(const at::Tensor& a, const at::Tensor& b, const std::string& what = "") {
  ASSERT_EQ(a.sizes(), b.sizes()) << what;
  EXPECT_LE(largest_difference(a, b), 0x1p-6 * b.abs().max().item<double>())
      << what << ": " << describe_differences(a, b);
}

// Repeats `run`, which returns a vector of tensors, without waiting for the device in between.
template <class Run>
void expect_same_each_time(const Run& run, int times, const std::string& what) {
  const std::vector<at::Tensor> first = run();
  const at::Tensor wrong = at::zeros({static_cast<int64_t>(first.size())}, at::device(at::kCUDA).dtype(at::kLong));
  for (int i = 0; i < times; ++i) {
    const std::vector<at::Tensor> again = run();
    for (size_t k = 0; k < first.size(); ++k) wrong[static_cast<int64_t>(k)] += again[k].ne(first[k]).sum();
  }
  const at::Tensor counts = wrong.to(at::kCPU);
  for (size_t k = 0; k < first.size(); ++k) {
    EXPECT_EQ(counts[static_cast<int64_t>(k)].item<int64_t>(), 0)
        << what << ": elements of result " << k << ", " << first[k].sizes() << ", that changed in " << times
        << " repetitions";
  }
}

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
    try {
      work();
    } catch (...) {  // else the tests that follow would find this thread still capturing
      cudaGraph_t broken = nullptr;
      cudaStreamEndCapture(stream_, &broken);
      if (broken != nullptr) cudaGraphDestroy(broken);
      cudaGetLastError();
      throw;
    }
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
