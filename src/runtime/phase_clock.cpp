#include "hrm/runtime/phase_clock.h"

#include <ATen/ops/zeros.h>

#include <chrono>
#include <exception>
#include <optional>
#include <utility>

#include "hrm/build_config.h"

#if HRM_WITH_CUDA
#include <c10/cuda/CUDAStream.h>

#include "runtime/cuda/phase_clock.h"
#endif

namespace hrm {
namespace {

// Of this thread: ranks may be threads.
thread_local PhaseClock* current_clock = nullptr;

}  // namespace

PhaseClock::PhaseClock(at::Device device)
    : state_(at::zeros({1 + static_cast<int64_t>(kPhases)}, at::TensorOptions().device(device).dtype(at::kLong))),
      taken_(kPhases, 0) {}

void PhaseClock::begin() {
  mark(kNone);
}

void PhaseClock::end(Phase phase) {
  used_.set(static_cast<size_t>(phase));
  mark(static_cast<int>(phase));
}

void PhaseClock::mark(int phase) {
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

void PhaseClock::read(int64_t step) {
  reader_.push(step, state_.narrow(0, 1, static_cast<int64_t>(kPhases)));
}

PhaseTimes PhaseClock::times(const std::vector<double>& ns) const {
  PhaseTimes times;
  for (size_t i = 0; i < kPhases; ++i) {
    if (used_[i]) times.emplace_back(kPhaseNames[i], ns[i] * 1e-6);
  }
  return times;
}

PhaseTimes PhaseClock::take(int64_t step) {
  std::optional<AsyncReader::Entry> entry;
  do {
    entry = reader_.pop(/*wait=*/true);
  } while (entry && entry->tag < step);
  if (!entry || entry->tag != step) return {};
  std::vector<double> since = entry->values;
  for (size_t i = 0; i < kPhases; ++i) since[i] -= taken_[i];
  taken_ = std::move(entry->values);
  return times(since);
}

PhaseTimes PhaseClock::totals() const {
  const at::Tensor host = state_.cpu();
  const int64_t* sums = host.const_data_ptr<int64_t>() + 1;
  return times(std::vector<double>(sums, sums + kPhases));
}

PhaseClock* PhaseClock::current() {
  return current_clock;
}

PhaseClock::Scope::Scope(PhaseClock* clock) : before_(std::exchange(current_clock, clock)) {}

PhaseClock::Scope::~Scope() {
  current_clock = before_;
}

PhaseRange::PhaseRange(Phase phase, RangeKind kind)
    : range_(kind, phase_name(phase)),
      clock_(PhaseClock::current()),
      phase_(static_cast<int>(phase)),
      outer_(PhaseClock::kNone),
      exceptions_(std::uncaught_exceptions()) {
  if (clock_ == nullptr) return;
  outer_ = std::exchange(clock_->open_, phase_);
  if (outer_ != PhaseClock::kNone) clock_->end(static_cast<Phase>(outer_));
}

PhaseRange::~PhaseRange() {
  if (clock_ == nullptr) return;
  clock_->open_ = outer_;
  // Of work that failed, e.g. in a capture, nothing is measured.
  if (std::uncaught_exceptions() == exceptions_) clock_->end(static_cast<Phase>(phase_));
}

}  // namespace hrm
