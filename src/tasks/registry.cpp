#include "hrm/tasks/registry.h"

#include <nlohmann/json.hpp>

#include "hrm/base/error.h"
#include "hrm/base/text.h"
#include "hrm/formats/json.h"
#include "tasks/specs.h"

namespace hrm::tasks {
namespace {

std::vector<const TaskSpec*>& table() {
#define HRM_SPEC_ROW(name) &name##_spec(),
  static std::vector<const TaskSpec*> specs{HRM_BUILTIN_TASKS(HRM_SPEC_ROW)};
#undef HRM_SPEC_ROW
  return specs;
}

const TaskSpec* find_spec(const std::string& task) {
  for (const TaskSpec* spec : table()) {
    if (spec->settings->name == task) return spec;
  }
  return nullptr;
}

// The row of a stored configuration, whose other values may need more settings to be read.
const TaskSpec* spec_of_json(const std::string& config_json) {
  const nlohmann::json json =
      parse_json(config_json, "config.json", ExitCode::checkpoint, {.bytes = config::kMaxConfigBytes, .depth = 16});
  const auto task = json.find("task");
  return find_spec(task != json.end() && task->is_string() ? task->get<std::string>() : config::Config().task);
}

// The task that opens the folder of another library; nullptr: none does.
const TaskSpec* foreign_task(const std::filesystem::path& folder) {
  for (const TaskSpec* spec : table()) {
    if (spec->is_foreign != nullptr && spec->is_foreign(folder)) return spec;
  }
  return nullptr;
}

}  // namespace

void add_task(const TaskSpec& spec) {
  config::add_task_settings(*spec.settings);
  table().push_back(&spec);
}

const TaskSpec& task_spec(const config::Config& config) {
  return task_spec(config.task);
}

const TaskSpec& task_spec(const std::string& name) {
  const TaskSpec* spec = find_spec(name);
  require(spec != nullptr, ExitCode::unexpected, "there is no task '", name, "'");
  return *spec;
}

void check_settings(const config::LoadedConfig& loaded) {
  config::validate(loaded);
  if (const auto check = task_spec(loaded.config).check_data) check(loaded);
}

std::unique_ptr<Task> make_task(const config::Config& config, const Runtime& runtime,
                                std::shared_ptr<parallel::Comm> comm, std::shared_ptr<parallel::Comm> tensor) {
  const TaskSpec& spec = task_spec(config);
  if (!tensor || tensor->alone()) return spec.make(config, runtime, std::move(comm));
  require(spec.make_cut != nullptr, ExitCode::usage, "parallel.tensor = ", tensor->ranks(),
          " cuts models of text; the model of task ", config.task, " stays whole; set parallel.tensor to 1");
  return spec.make_cut(config, runtime, std::move(comm), std::move(tensor));
}

bool has_adapter(const config::Config& config) {
  const TaskSpec& spec = task_spec(config);
  return spec.has_adapter != nullptr && spec.has_adapter(config);
}

namespace {

// `open`: what finds and checks a checkpoint of ours.
StoredModel open_stored_model_by(const std::filesystem::path& path, const std::vector<std::string>& overrides,
                                 const std::string& base,
                                 checkpoint::FoundCheckpoint (*open)(const std::filesystem::path&)) {
  const auto check_base = [&](const config::Config& config) {
    require(base.empty() || has_adapter(config), ExitCode::usage, "--base is of adapters, and the model of '",
            path.string(), "' has none");
  };
  StoredModel stored;
  stored.overrides = overrides;
  if (const TaskSpec* spec = foreign_task(path)) {
    if (!base.empty()) stored.overrides.push_back(cat(spec->base_key, "=", base));
    stored.folder = path;
    stored.config = spec->foreign_config(path, stored.overrides);
    stored.meta.step = -1;
    stored.foreign = true;
    check_base(stored.config);
    return stored;
  }
  checkpoint::FoundCheckpoint found = open(path);
  stored.config = stored_settings(found, overrides).config;
  check_base(stored.config);
  if (!base.empty()) {
    stored.overrides.push_back(cat(task_spec(stored.config).base_key, "=", base));
    stored.config = stored_settings(found, stored.overrides).config;
  }
  stored.folder = std::move(found.dir);
  stored.meta = std::move(found.meta);
  return stored;
}

}  // namespace

StoredModel open_stored_model(const std::filesystem::path& path, const std::vector<std::string>& overrides,
                              const std::string& base) {
  return open_stored_model_by(path, overrides, base, &checkpoint::open_checkpoint);
}

StoredModel open_stored_model(const std::filesystem::path& path, const std::vector<std::string>& overrides,
                              const std::string& base, parallel::Comm& comm) {
  if (comm.alone()) return open_stored_model(path, overrides, base);
  StoredModel stored;
  if (comm.main()) stored = open_stored_model(path, overrides, base);
  const std::string folder = comm.all_gather_text(stored.folder.string())[0];
  return comm.main() ? stored : open_stored_model_by(folder, overrides, base, &checkpoint::read_meta);
}

StoredModel with_overrides(const StoredModel& stored, const std::vector<std::string>& more) {
  if (more.empty()) return stored;
  StoredModel out = stored;
  out.overrides.insert(out.overrides.end(), more.begin(), more.end());
  out.config = stored.foreign ? foreign_task(stored.folder)->foreign_config(stored.folder, out.overrides)
                              : stored_settings({stored.folder, stored.meta}, out.overrides).config;
  return out;
}

config::LoadedConfig stored_settings(const checkpoint::FoundCheckpoint& found,
                                     const std::vector<std::string>& overrides) {
  std::vector<std::string> settings = overrides;
  const TaskSpec* spec = spec_of_json(found.meta.config_json);
  if (spec != nullptr && spec->settings_of_earlier != nullptr) {
    const std::vector<std::string> earlier = spec->settings_of_earlier(found.meta, overrides);
    settings.insert(settings.end(), earlier.begin(), earlier.end());
  }
  return config::config_from_json_text(found.meta.config_json, (found.dir / "config.json").string(), settings);
}

}  // namespace hrm::tasks
