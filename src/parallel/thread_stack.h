#pragma once
// The calls that another thread of this process is in.

#include <sys/types.h>

#include <string>
#include <vector>

namespace hrm::parallel {

// Once, early, from a thread in good health: loads what a signal handler must not load.
void prepare_thread_stack();

// One line per call, innermost first: "libc.so.6: poll+0x4f", or "hrm_train+0x1a2b3c" (for addr2line) where there is no
// name. Interrupts the thread with a real-time signal. Empty when the thread is no more, does not answer within
// `seconds`, or the signal is in use. One call at a time.
std::vector<std::string> thread_stack(pid_t thread, double seconds);

}  // namespace hrm::parallel
