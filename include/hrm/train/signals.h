#pragma once
// SIGTERM, SIGINT, SIGUSR1 and SIGUSR2 ask for a clean stop: the step in hand is finished and saved. A second SIGINT or
// SIGTERM leaves at once.

#include <string>

namespace hrm::train {

void install_signal_handlers();
bool stop_requested();
// "SIGTERM", or empty.
std::string stop_signal_name();

}  // namespace hrm::train
