#pragma once
// Commands that use a trained model: in one process, or as ranks that hold one part of the model each
// (parallel.tensor).

#include <functional>
#include <string>
#include <vector>

#include "hrm/tasks/trained_model.h"
#include "train/ranks.h"

namespace hrm::commands {

// Calls `body` in this process alone, or as one of the ranks that a launcher started. `command`: its name, for
// messages. `overrides`: of the configuration, from which the ranks know how they meet. Ranks behind rank 0 log only
// errors. Returns and throws as run_as_ranks.
int run_in_parts(const std::string& command, const std::vector<std::string>& overrides,
                 const std::function<int(train::Ranks&)>& body);

// Error(usage) where a setting of parallel.tensor is not the number of ranks.
void check_parts(const std::string& command, int64_t tensor, int ranks);

// Of a configuration with one part for each rank: starts the device and connects the ranks. With one rank, only what
// the opening function needs not do by itself: nothing. A collective operation.
tasks::ModelPlace place_parts(train::Ranks& ranks, const config::Config& config);

// tasks::open_stored_model() for these ranks, with its place: one part for each rank. A collective operation. Throws
// Error(usage) also for a model that cannot be cut.
tasks::StoredModel open_in_parts(const std::string& command, train::Ranks& ranks, const std::string& path,
                                 const std::vector<std::string>& overrides, const std::string& base = "");

// Says that this rank is alive and what it does; with one process nothing. `count`: of what it does.
void report_alive(train::Ranks& ranks, int64_t count, const char* doing);

}  // namespace hrm::commands
