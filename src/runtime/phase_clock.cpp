#include "hrm/runtime/phase_clock.h"

#include <ATen/ops/zeros.h>

#include <chrono>
#include <utility>

#include "hrm/build_config.h"

#if HRM_WITH_CUDA
#include <c10/cuda/CUDAStream.h>

#include "runtime/cuda/phase_clock.h"
#endif

namespace hrm {
namespace {

constexpr int64_t kNone = -1;
constexpr size_t kMostPending = 8;

}  // namespace

PhaseClock::PhaseClock(at::Device device, int64_t phases)
    : state_(at::zeros({1 + phases}, at::TensorOptions().device(device).dtype(at::kLong))) {
  taken_ = newest_ = {.tag = 0, .values = std::vector<double>(static_cast<size_t>(phases), 0)};
}

void PhaseClock::begin() {
  mark(kNone);
}

void PhaseClock::end(int64_t phase) {
  mark(phase);
}

void PhaseClock::mark(int64_t phase) {
  auto* state = state_.mutable_data_ptr<int64_t>();
#if HRM_WITH_CUDA
  if (state_.is_cuda()) {
    cuda::mark_phase(state, phase, c10::cuda::getCurrentCUDAStream(state_.device().index()));
    return;
  }
#endif
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  const int64_t now = std::chrono::duration_cast<std::chrono::nanoseconds>(since).count();
  if (phase != kNone) state[1 + phase] += now - state[0];
  state[0] = now;
}

void PhaseClock::step() {
  reader_.push(++steps_, state_.narrow(0, 1, state_.size(0) - 1));
  while (auto entry = reader_.pop(/*wait=*/reader_.pending() > kMostPending)) newest_ = std::move(*entry);
}

std::vector<double> PhaseClock::take() {
  while (auto entry = reader_.pop(/*wait=*/false)) newest_ = std::move(*entry);
  const auto steps = static_cast<double>(newest_.tag - taken_.tag);
  if (steps == 0) return {};
  std::vector<double> out;
  for (size_t i = 0; i < newest_.values.size(); ++i) {
    out.push_back((newest_.values[i] - taken_.values[i]) * 1e-6 / steps);
  }
  taken_ = newest_;
  return out;
}

}  // namespace hrm
