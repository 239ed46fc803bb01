#pragma once
// The phases of a training step whose time PhaseClock measures. Free of torch. scripts/lib/phases.py reads this list.

#include <cstddef>

// X(identifier, name in metrics and traces), in the order of a step. The name is that of the range, where there is one.
#define HRM_PHASES(X)                 \
  X(data, "data")                     \
  X(generate, "generate")             \
  X(zero_grad, "optimizer.zero_grad") \
  X(prepare, "prepare")               \
  X(window, "window")                 \
  X(forward, "forward")               \
  X(backward, "backward")             \
  X(all_reduce, "all_reduce")         \
  X(grad_clip, "grad_clip")           \
  X(optimizer_step, "optimizer.step") \
  X(project, "project")               \
  X(report, "report")                 \
  X(eval_batch, "eval.batch")

namespace hrm {

enum class Phase : int {
#define HRM_PHASE_IDENTIFIER(identifier, name) identifier,
  HRM_PHASES(HRM_PHASE_IDENTIFIER)
#undef HRM_PHASE_IDENTIFIER
};

inline constexpr const char* kPhaseNames[] = {
#define HRM_PHASE_NAME(identifier, name) name,
    HRM_PHASES(HRM_PHASE_NAME)
#undef HRM_PHASE_NAME
};
inline constexpr size_t kPhases = sizeof kPhaseNames / sizeof *kPhaseNames;

constexpr const char* phase_name(Phase phase) {
  return kPhaseNames[static_cast<size_t>(phase)];
}

}  // namespace hrm
