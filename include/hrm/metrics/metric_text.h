#pragma once
// Metrics as the progress line shows them.

#include <string>

namespace hrm::metrics {

std::string percent(double share);            // "31.2 %"; "-" for what is no number
std::string fixed(double value, int digits);  // the same

}  // namespace hrm::metrics
