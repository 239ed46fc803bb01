#include "hrm/tasks/make_task.h"

#include "hrm/data/language_open.h"
#include "hrm/tasks/language.h"
#include "hrm/tasks/polychromic.h"
#include "hrm/tasks/puzzle.h"

namespace hrm::tasks {

void check_settings(const config::LoadedConfig& loaded) {
  config::validate(loaded);
  if (loaded.config.task == "language") data::check_language_settings(loaded);
}

std::unique_ptr<Task> make_task(const config::Config& config, const Runtime& runtime,
                                std::shared_ptr<parallel::Comm> comm) {
  if (config.task == "polychromic") return std::make_unique<PolychromicTask>(config, runtime, std::move(comm));
  if (config.task == "language") return std::make_unique<LanguageTask>(config, runtime, std::move(comm));
  return std::make_unique<PuzzleTask>(config, runtime, std::move(comm));
}

}  // namespace hrm::tasks
