#include "hrm/parallel/step_clock.h"

#include <ATen/ops/zeros.h>

#include <chrono>

#include "hrm/build_config.h"

#if HRM_WITH_CUDA
#include <c10/cuda/CUDAStream.h>

#include "parallel/cuda/step_clock.h"
#endif

namespace hrm::parallel {
namespace {

int64_t now_ns() {
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(since).count();
}

}  // namespace

StepClock::StepClock(at::Device device) : state_(at::zeros({2}, at::TensorOptions().device(device).dtype(at::kLong))) {}

void StepClock::begin_step(const at::Tensor& own_ms, const at::Tensor& waited_ms) {
  auto* state = state_.mutable_data_ptr<int64_t>();
  auto* own = own_ms.mutable_data_ptr<double>();
  auto* waited = waited_ms.mutable_data_ptr<double>();
#if HRM_WITH_CUDA
  if (state_.is_cuda()) {
    cuda::step_clock_begin(state, own, waited, c10::cuda::getCurrentCUDAStream(state_.device().index()));
    return;
  }
#endif
  const int64_t now = now_ns();
  *own = state[0] > 0 ? static_cast<double>(now - state[0] - state[1]) * 1e-6 : 0;
  *waited = state[0] > 0 ? static_cast<double>(state[1]) * 1e-6 : 0;
  state[0] = now;
  state[1] = 0;
}

void StepClock::wait(bool begins) {
  auto* state = state_.mutable_data_ptr<int64_t>();
#if HRM_WITH_CUDA
  if (state_.is_cuda()) {
    cuda::step_clock_wait(state, begins, c10::cuda::getCurrentCUDAStream(state_.device().index()));
    return;
  }
#endif
  state[1] += begins ? -now_ns() : now_ns();
}

}  // namespace hrm::parallel
