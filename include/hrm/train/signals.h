#pragma once
// SIGTERM, SIGINT, SIGUSR1, SIGUSR2 and SIGHUP ask for a clean stop: the step in hand is finished and saved. A second
// SIGINT or SIGTERM leaves at once. SIGHUP does not count if it was ignored when the program began (nohup).

#include <string>

namespace hrm::train {

void install_signal_handlers();

// From now on a thread of its own takes these signals; this thread and all that it starts never do. oneDNN's kernels
// for AVX-512 do not survive a signal in their midst (LibTorch 2.11: the heap is damaged, in one of twenty runs). Call
// it before any thread is started; it changes nothing in what the signals do.
void keep_signals_from_computing();
bool stop_requested();
// "SIGTERM", or empty.
std::string stop_signal_name();

}  // namespace hrm::train
