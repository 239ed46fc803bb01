// A checkpoint to hand on: one set of weights, and a configuration that holds on other machines.
#include <algorithm>

#include "hrm/base/build_info.h"
#include "hrm/base/error.h"
#include "hrm/base/text.h"
#include "hrm/config/schema.h"
#include "hrm/ops/gemm_tuning.h"
#include "hrm/tasks/export_request.h"
#include "hrm/tasks/registry.h"

namespace hrm::tasks {
namespace {

// Whether a path begins at the root, as home folders do that the loader has filled in. In a list of paths, each follows
// a comma or the colon of its name.
bool is_of_this_machine(const std::string& paths) {
  for (size_t slash = paths.find('/'); slash != std::string::npos; slash = paths.find('/', slash + 1)) {
    const size_t before = slash == 0 ? std::string::npos : paths.find_last_not_of(" \t", slash - 1);
    if (before == std::string::npos || paths[before] == ',' || paths[before] == ':') return true;
  }
  return false;
}

// Whether a setting means nothing, or something else, where the checkpoint is read.
bool is_of_the_run(const config::Field& field) {
  // The scales of fp8 are training state. There is one set of weights only. How many rows fit depends on the memory.
  static const std::vector<std::string> kKeys{"runtime.device", "precision.recursions", "eval.weights",
                                              "eval.batch_size"};
  if (std::find(kKeys.begin(), kKeys.end(), field.key) != kKeys.end()) return true;
  return field.key.starts_with("parallel.") || field.key.starts_with("profiling.");
}

bool is_path_of_this_machine(const config::Field& field, const config::Config& config) {
  return std::holds_alternative<config::PathText>(field.rule) &&
         is_of_this_machine(std::get<std::string>(field.get(config)));
}

std::string portable_config(const StoredModel& stored) {
  config::LoadedConfig loaded = stored_settings({stored.folder, stored.meta});
  const config::Config standard;
  for (const config::Field& field : config::fields()) {
    if (is_of_the_run(field)) field.set(loaded.config, field.get(standard));
    // Not the default: without its own test data, an evaluation must ask for some.
    if (is_path_of_this_machine(field, loaded.config)) field.set(loaded.config, std::string());
  }
  if (loaded.config.run.dir.empty()) loaded.config.run.dir = standard.run.dir;
  return loaded.to_json();
}

}  // namespace

void export_checkpoint(const StoredModel& stored, const ExportRequest& request, const ChosenWeights& chosen,
                       const std::vector<std::filesystem::path>& files) {
  checkpoint::CheckpointMeta meta = stored.meta;
  meta.config_json = portable_config(stored);
  for (const char* of_resume : {checkpoint::kScore, checkpoint::kNextBatch, ops::kGemmChoices}) {
    meta.info.erase(of_resume);
  }
  meta.info["program"] = cat("hrm_train ", build_info("version"), " ", build_info("commit"));
  meta.info[checkpoint::kWeightsInfo] = cat(chosen.averaged ? checkpoint::kAveragedInfo : "raw", ", ", request.dtype);
  const at::ScalarType dtype = request.dtype == "bfloat16" ? at::kBFloat16 : at::kFloat;
  checkpoint::write_weights_folder(request.out, chosen.values(), dtype, meta, files);
}

}  // namespace hrm::tasks
