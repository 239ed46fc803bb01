#include "hrm/parallel/step_clock.h"

#include <ATen/ops/zeros.h>

#include <chrono>

#include "hrm/base/error.h"
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

StepClock::StepClock(at::Device device, int axes)
    : state_(at::zeros({2 + axes}, at::TensorOptions().device(device).dtype(at::kLong))) {}

void StepClock::begin_step(const at::Tensor& own_ms, const at::Tensor& waited_ms) {
  auto* state = state_.mutable_data_ptr<int64_t>();
  auto* own = own_ms.mutable_data_ptr<double>();
  auto* waited = waited_ms.mutable_data_ptr<double>();
  const int64_t waits = waited_ms.numel();
  require(waits >= 1 && waits < state_.numel() && waited_ms.is_contiguous(), ExitCode::unexpected, "a clock of ",
          state_.numel() - 2, " axes cannot tell the waits of ", waits - 1);
#if HRM_WITH_CUDA
  if (state_.is_cuda()) {
    cuda::step_clock_begin(state, own, waited, static_cast<int>(waits),
                           c10::cuda::getCurrentCUDAStream(state_.device().index()));
    return;
  }
#endif
  const int64_t now = now_ns();
  *own = state[0] > 0 ? static_cast<double>(now - state[0] - state[1]) * 1e-6 : 0;
  for (int64_t i = 0; i < waits; ++i) {
    waited[i] = state[0] > 0 ? static_cast<double>(state[1 + i]) * 1e-6 : 0;
    state[1 + i] = 0;
  }
  state[0] = now;
}

void StepClock::wait(bool begins, int axis) {
  auto* state = state_.mutable_data_ptr<int64_t>();
#if HRM_WITH_CUDA
  if (state_.is_cuda()) {
    cuda::step_clock_wait(state, begins, axis, c10::cuda::getCurrentCUDAStream(state_.device().index()));
    return;
  }
#endif
  const int64_t time = begins ? -now_ns() : now_ns();
  state[1] += time;
  if (axis >= 0) state[2 + axis] += time;
}

}  // namespace hrm::parallel
