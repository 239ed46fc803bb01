#pragma once
// What the configuration knows of a task: its row of defaults and rules. The rows stand with the tasks
// (tasks/<name>/settings.cpp) and know no torch; nothing in config/ names a task.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "hrm/config/check.h"
#include "hrm/config/schema.h"

namespace hrm::config {

// A default other than the member initialiser's.
struct TaskDefault {
  struct Chosen {
    Value value;
    std::string note;  // after "default" in the origin, e.g. "for model.arch trm"; empty: "for task NAME"
  };
  const char* key;
  // Called only for a key that nobody has set. May look at all values that were set and at the defaults of earlier
  // rows. nullopt: the member initialiser's.
  std::function<std::optional<Chosen>(const LoadedConfig& loaded)> choose;
  const char* text = "";  // the value in words, for 'config --describe'; empty: not listed there
};

// A name by which another system knows a setting. It is not accepted; the error says what to write instead.
struct ForeignName {
  const char* name;       // without a section
  const char* key;        // empty: there is none
  const char* note = "";  // what else there is to know
};

// What training data are.
enum class TrainingData { puzzles, texts, records, vectors };

struct TaskSettings {
  const char* name;  // the value of the key `task`
  const char* help;  // what is trained, in a few words
  std::vector<TaskDefault> defaults = {};
  TrainingData data = TrainingData::puzzles;
  bool lists_paths = false;     // PathText::list is in force
  const char* train_data = "";  // what data.train shall be, after "data.train is empty; set it to "
  const char* test_data = "";   // what data.test shall be
  // Whether the configuration may give data to evaluate; nullptr: it always may.
  bool (*may_evaluate)(const Config& config) = nullptr;
  // Values that contradict each other. Of every configuration that is loaded, stored ones included, so that a rule that
  // is added later must not refuse what was trained before.
  void (*check)(const Checker& check) = nullptr;
  // Settings without effect and the like: only when a run starts.
  void (*check_run)(const Checker& check) = nullptr;
  std::vector<ForeignName> foreign_names = {};
};

// The rows that are built in, in the order of the help; defined in tasks/task_settings.cpp.
const std::vector<const TaskSettings*>& builtin_task_settings();

// All rows. add_task_settings() adds one, for tests, before the first configuration is loaded; the row must live on.
const std::vector<const TaskSettings*>& all_task_settings();
void add_task_settings(const TaskSettings& settings);

// The row of this name, nullptr when there is none.
const TaskSettings* find_task_settings(const std::string& name);
// What tasks make of a key's default, to be added to its help: ". Default of task=NAME: TEXT"; empty: nothing.
std::string defaults_of_tasks(const std::string& key);
// What to write instead of a key that another system has, behind "unknown key 'KEY'": "; it is called OURS here".
// Empty: no task knows the name. A section before it does not matter.
std::string answer_to_foreign_name(const std::string& key);
// The row of the configuration's task.
const TaskSettings& task_settings(const Config& config);

}  // namespace hrm::config
