#pragma once
// A trained model as commands find it: a checkpoint, or a folder of another library, with its configuration.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hrm/checkpoint/checkpoint.h"
#include "hrm/config/load.h"
#include "hrm/runtime/device.h"

namespace hrm::models {
class LanguageModel;
}
namespace hrm::parallel {
class Comm;
}

namespace hrm::tasks {

// Where a model is opened. The default: by this process alone, which starts its device when it knows the configuration.
struct ModelPlace {
  std::optional<Runtime> runtime = {};               // of a device that was started already
  std::shared_ptr<parallel::Comm> tensor = nullptr;  // ranks that hold one part of the model each; null: it is whole

  // The runtime, which is started if it was not.
  Runtime start(const config::Config& config) const;
};

struct StoredModel {
  std::filesystem::path folder;        // the step folder, or the other library's folder
  config::Config config;               // the stored one with the overrides
  std::vector<std::string> overrides;  // as given, with the base
  checkpoint::CheckpointMeta meta;     // of another library's folder: empty, step -1
  bool foreign = false;                // the folder is another library's
  ModelPlace place = {};
};

// `path`: a run folder (its newest valid checkpoint), a checkpoint folder, or a folder that some task opens
// (TaskSpec::is_foreign). Adds the settings that keep the meaning of an earlier version's checkpoint. `base`: folder of
// the weights that an adapter is for; empty: as the checkpoint or the adapter says. Throws Error(checkpoint);
// Error(usage) as config_from_json_text, and for a base beside a model without an adapter.
StoredModel open_stored_model(const std::filesystem::path& path, const std::vector<std::string>& overrides,
                              const std::string& base = "");
// The same by all ranks of `comm`: rank 0 chooses the checkpoint and verifies it, and the others open that one. A
// collective operation.
StoredModel open_stored_model(const std::filesystem::path& path, const std::vector<std::string>& overrides,
                              const std::string& base, parallel::Comm& comm);
// With more overrides of its configuration.
StoredModel with_overrides(const StoredModel& stored, const std::vector<std::string>& more);

// The configuration of a checkpoint, with the settings that keep it what it was.
config::LoadedConfig stored_settings(const checkpoint::FoundCheckpoint& found,
                                     const std::vector<std::string>& overrides = {});

// What every kind of opened model has.
struct TrainedModel {
  virtual ~TrainedModel() = default;

  config::Config config;  // the checkpoint's, with the overrides
  Runtime runtime;
  std::filesystem::path checkpoint;  // the step folder, or the other library's
  int64_t step = -1;                 // -1: of another library's folder
  bool averaged = false;             // the weights are the EMA
};

// The set of weights that `wanted` (auto, raw, ema) names; auto: the average where there is one.
struct ChosenWeights {
  checkpoint::ModelWeights stored;
  bool averaged = false;

  // The two sets of a training are beside each other; an exported checkpoint has one, whichever it is.
  bool beside_raw() const { return averaged && !stored.only_average; }
  const std::vector<std::pair<std::string, at::Tensor>>& values() const {
    return beside_raw() ? stored.ema : stored.raw;
  }
  checkpoint::WeightSet set() const { return beside_raw() ? checkpoint::WeightSet::ema : checkpoint::WeightSet::raw; }
};
// Error(checkpoint) where the checkpoint holds no average and `wanted` is ema, or nothing else and `wanted` is raw.
ChosenWeights choose_weights(const std::filesystem::path& checkpoint, const std::string& wanted);

// The same choice for a model of text, whose weights are then copied into `weights`, entries of the whole model or of
// the part that `model` is. No other values are read. Returns whether they are the average. Throws as choose_weights()
// and checkpoint::load_weights_into().
bool load_chosen_weights(const std::filesystem::path& checkpoint, const std::string& wanted, Stateful& weights,
                         models::LanguageModel& model);

// Fills what does not depend on the kind of model, but for the runtime and the weights. Error(usage) with `otherwise`
// after "'FOLDER' holds a model of task TASK, " where it is of another task than `task`.
void begin_opening(TrainedModel& model, const StoredModel& stored, const char* task, const char* otherwise);

}  // namespace hrm::tasks
