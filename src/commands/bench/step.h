#pragma once
// The measurement of `bench step`, for other benchmarks that time whole steps, too.

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>

#include "hrm/commands/commands.h"

namespace hrm::commands {

inline constexpr int64_t kSettlingSteps = 100000;  // at most
// A longer warm-up of the learning rate is refused as too long.
inline constexpr int64_t kMostSteps = int64_t{1} << 62;

// Times the training step of a configuration. Rank 0 gives the result, as `bench step --json` writes it, to `take`.
// Returns the exit code. options.json_out is not read. Throws Error as a training with this configuration does.
int measure_step(const BenchStepOptions& options, const std::function<void(const nlohmann::ordered_json&)>& take);

}  // namespace hrm::commands
