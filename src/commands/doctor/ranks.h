#pragma once

namespace hrm::commands {

// Run by every rank of a launch; rank 0 prints. Throws Error(usage) when this process is alone, Error(rank_failed) when
// the ranks do not find each other within the time.
int run_doctor_ranks(bool json, double meet_timeout_s);

}  // namespace hrm::commands
