#pragma once
// Phases in a recorded trace: replayed steps have no ranges of their own, but marks (hrm/runtime/phase_clock.h).

#include <string>

namespace hrm {

// The Chrome trace that Kineto wrote, with a range for each phase on a track of their own in the GPU's process
// ("gpu_user_annotation", as Kineto's own ranges of eager work). A phase begins where the mark before it ends. A trace
// without marks comes back as it was.
std::string with_phase_ranges(std::string trace);

}  // namespace hrm
