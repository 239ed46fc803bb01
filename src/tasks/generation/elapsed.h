#pragma once

#include <chrono>

namespace hrm::tasks {

using Clock = std::chrono::steady_clock;

// Milliseconds of wall time.
inline double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

}  // namespace hrm::tasks
