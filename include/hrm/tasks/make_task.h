#pragma once
// The task that a configuration names.

#include <memory>

#include "hrm/config/config.h"
#include "hrm/parallel/comm.h"
#include "hrm/runtime/device.h"
#include "hrm/tasks/task.h"

namespace hrm::tasks {

// Opens the data, builds the model; `config` must live as long. Throws as PuzzleTask and LanguageTask.
std::unique_ptr<Task> make_task(const config::Config& config, const Runtime& runtime,
                                std::shared_ptr<parallel::Comm> comm = nullptr);

}  // namespace hrm::tasks
