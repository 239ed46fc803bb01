#pragma once
// Checkpoints: one directory per step, committed by one rename, verified by digests. checkpoints/README.md gives the
// format byte by byte. One process writes to a run folder at a time.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hrm/state/registry.h"

namespace hrm::checkpoint {

// full: everything that a resume needs. weights: model.pt and the configuration alone (an import).
enum class CheckpointKind { full, weights };

struct CheckpointMeta {
  int64_t step = 0;
  std::string config_json;                  // the resolved configuration, config.json
  std::map<std::string, std::string> info;  // free facts for people and tools (model signature, versions)
  CheckpointKind kind = CheckpointKind::full;
};

// Weights by their official names, without "model.inner."; CPU tensors of the stored dtype.
struct ModelWeights {
  std::vector<std::pair<std::string, at::Tensor>> raw;
  // The averaged set, complete: averaged parameters, and the raw tensors of those that have no average (H_init,
  // L_init, puzzle embeddings). Empty where the run kept no average.
  std::vector<std::pair<std::string, at::Tensor>> ema;
};

enum class WeightSet { raw, ema };

struct FoundCheckpoint {
  std::filesystem::path dir;
  CheckpointMeta meta;
};

// Writes <run_dir>/checkpoints/step-%09d and returns it. Everything is written to a temporary directory, synced, and
// renamed: a process killed at any instant leaves the earlier checkpoints as they were and never half a new one.
// Afterwards all but the newest `keep` checkpoints (>= 1, the new one always among them) are deleted. An existing
// checkpoint of the same step is replaced. `meta.kind` is ignored. Waits for the device where tensors live there.
// Throws Error(environment) when it cannot write; then the temporary directory is gone and older checkpoints stay.
std::filesystem::path save_checkpoint(const std::filesystem::path& run_dir, Stateful& root, const CheckpointMeta& meta,
                                      int64_t keep);

// As save_checkpoint, for weights alone (kind weights). `raw` must hold every weight; `ema` may be empty.
std::filesystem::path save_weights(const std::filesystem::path& run_dir, const ModelWeights& weights,
                                   const CheckpointMeta& meta, int64_t keep);

// The committed checkpoints of a run, newest first; empty where there is none. Their content is not looked at.
std::vector<std::filesystem::path> list_checkpoints(const std::filesystem::path& run_dir);

// The newest checkpoint whose manifest and digests are right. A corrupt one is logged by name and reason and passed
// over. nullopt: the run has none at all. Error(checkpoint): there are some, and all are corrupt.
std::optional<FoundCheckpoint> find_latest_valid(const std::filesystem::path& run_dir);

// A checkpoint that a user named: a run folder (its latest valid one) or a step folder, which must be valid.
// Throws Error(checkpoint).
FoundCheckpoint open_checkpoint(const std::filesystem::path& run_or_step);

// Verifies the checkpoint and copies it into the entries of `root`, in place. Entries must agree by name, dtype, shape
// and slice, none missing on either side; otherwise Error(checkpoint) names the first difference and `root` is as it
// was. Refuses kind weights. Entries whose names begin with `optional` (unless empty) may be missing on one side, all
// of them: in the checkpoint, and those of `root` keep their values; or here, and they are passed over with a line in
// the log.
void load_checkpoint(const std::filesystem::path& dir, Stateful& root, const std::string& optional = "");

// Copies the entries of `part`, which are those of a training's state whose names begin with `prefix`, from the
// training state of a checkpoint; same rules. False, and nothing is changed, where the checkpoint has none of them.
// Only the manifest and the file of the state are verified, and only these entries read.
bool load_state_part(const std::filesystem::path& dir, Stateful& part, const std::string& prefix);

// Copies one weight set into the entries of role weight alone, of a checkpoint of either kind; same rules. ema where
// there is none: Error(checkpoint).
void load_weights_into(const std::filesystem::path& dir, Stateful& root, WeightSet which = WeightSet::raw);

// Reads model.pt, after verifying the checkpoint, with our tensor-only reader: nothing in the file is executed.
ModelWeights load_weights(const std::filesystem::path& dir);

}  // namespace hrm::checkpoint
