#pragma once
// SIGTERM, SIGINT, SIGUSR1, SIGUSR2 and SIGHUP ask for a clean stop: the step in hand is finished and saved. A second
// SIGINT or SIGTERM leaves at once. SIGHUP does not count if it was ignored when the program began (nohup).
// SIGRTMIN asks for a line about memory in the log, and stops nothing.

#include <string>

namespace hrm::train {

void install_signal_handlers();

// From now on a separate thread receives these signals; this thread and all that it starts never do. oneDNN's AVX-512
// kernels do not survive a signal (LibTorch 2.11: the heap is damaged in one of twenty runs). Call it before any thread
// is started. It does not change what the signals do.
void keep_signals_from_computing();
bool stop_requested();
// Whether SIGRTMIN has come since the last call.
bool memory_table_requested();
// "SIGTERM", or empty.
std::string stop_signal_name();

}  // namespace hrm::train
