#pragma once
// The measurement of `bench step`, for other benchmarks that time whole steps, too.

#include <functional>
#include <nlohmann/json_fwd.hpp>

#include "hrm/commands/commands.h"

namespace hrm::commands {

// Times the training step of a configuration. Rank 0 gives the result, as `bench step --json` writes it, to `take`.
// Returns the exit code. options.json_out is not read. Throws Error as a training with this configuration does.
int measure_step(const BenchStepOptions& options, const std::function<void(const nlohmann::ordered_json&)>& take);

}  // namespace hrm::commands
