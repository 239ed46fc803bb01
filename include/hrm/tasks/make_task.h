#pragma once
// The task that a configuration names.

#include <memory>

#include "hrm/config/load.h"
#include "hrm/parallel/comm.h"
#include "hrm/runtime/device.h"
#include "hrm/tasks/task.h"

namespace hrm::tasks {

// config::validate(), and of language models also data::check_language_settings().
void check_settings(const config::LoadedConfig& loaded);

// Opens the data, builds the model; `config` must live as long. Throws as PuzzleTask, LanguageTask and PolychromicTask.
std::unique_ptr<Task> make_task(const config::Config& config, const Runtime& runtime,
                                std::shared_ptr<parallel::Comm> comm = nullptr);

}  // namespace hrm::tasks
