#pragma once

#include "hrm/commands/commands.h"

namespace hrm::commands {

// Run by every rank of a launch; rank 0 prints. Throws Error(usage) when this process is alone or the ranks do not
// divide into the mesh, Error(rank_failed) when the ranks do not find each other within the time.
int run_doctor_ranks(const DoctorOptions& options);

}  // namespace hrm::commands
