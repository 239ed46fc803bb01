#include "hrm/config/task_settings.h"

#include "hrm/base/error.h"
#include "hrm/base/text.h"

namespace hrm::config {
namespace {

struct Rows {
  std::vector<const TaskSettings*> all = builtin_task_settings();
  bool in_use = false;  // the list of fields was made, whose choices of `task` are the names
};

Rows& rows() {
  static Rows instance;
  return instance;
}

}  // namespace

const std::vector<const TaskSettings*>& all_task_settings() {
  return rows().all;
}

void add_task_settings(const TaskSettings& settings) {
  require(!rows().in_use, ExitCode::unexpected, "task ", settings.name, " was added after a configuration was loaded");
  require(find_task_settings(settings.name) == nullptr, ExitCode::unexpected, "there are two tasks ", settings.name);
  rows().all.push_back(&settings);
}

const TaskSettings* find_task_settings(const std::string& name) {
  for (const TaskSettings* row : all_task_settings()) {
    if (row->name == name) return row;
  }
  return nullptr;
}

std::string defaults_of_tasks(const std::string& key) {
  std::string text;
  for (const TaskSettings* task : all_task_settings()) {
    for (const TaskDefault& other : task->defaults) {
      if (key == other.key && *other.text != 0) text += cat(". Default of task=", task->name, ": ", other.text);
    }
  }
  return text;
}

std::string answer_to_foreign_name(const std::string& key) {
  const std::string name = key.substr(key.rfind('.') + 1);
  for (const TaskSettings* task : all_task_settings()) {
    for (const ForeignName& foreign : task->foreign_names) {
      if (name != foreign.name) continue;
      const bool both = *foreign.key != 0 && *foreign.note != 0;
      return cat("; ", *foreign.key == 0 ? "" : cat("it is called ", foreign.key, " here"), both ? ", and " : "",
                 foreign.note);
    }
  }
  return "";
}

const TaskSettings& task_settings(const Config& config) {
  const TaskSettings* row = find_task_settings(config.task);
  require(row != nullptr, ExitCode::unexpected, "there is no task '", config.task, "'");
  return *row;
}

std::vector<std::string> task_names() {
  rows().in_use = true;
  std::vector<std::string> names;
  for (const TaskSettings* row : all_task_settings()) names.emplace_back(row->name);
  return names;
}

std::string tasks_help() {
  std::string help;
  for (const TaskSettings* row : all_task_settings()) {
    help += cat(help.empty() ? "what is trained: " : "; ", row->name, " = ", row->help);
  }
  return help;
}

}  // namespace hrm::config
