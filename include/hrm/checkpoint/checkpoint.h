#pragma once
// Checkpoints: one directory per step, committed by one rename, verified by digests. checkpoints/README.md gives the
// format byte by byte. One process writes to a run folder at a time.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hrm/formats/manifest.h"
#include "hrm/state/registry.h"

namespace hrm::checkpoint {

struct CheckpointMeta {
  int64_t step = 0;
  std::string config_json;                  // the resolved configuration, config.json
  std::map<std::string, std::string> info;  // free facts for people and tools (model signature, versions)
  CheckpointKind kind = CheckpointKind::full;

  // Whether there is nothing to resume from: no optimizer, no position in the data.
  bool weights_only() const { return kind == CheckpointKind::weights; }
};

// Weights by their official names, without "model.inner."; CPU tensors of the stored dtype. A checkpoint of kind
// weights may hold bfloat16 where the model has float32.
struct ModelWeights {
  std::vector<std::pair<std::string, at::Tensor>> raw;
  // The averaged set, complete: averaged parameters, and the raw tensors of those that have no average (H_init,
  // L_init, puzzle embeddings). Empty where the run kept no average.
  std::vector<std::pair<std::string, at::Tensor>> ema;
  // An export chose the averaged set: it is the only one, and `raw` has it.
  bool only_average = false;
};

enum class WeightSet { raw, ema, ema_or_raw };  // the last: the averaged ones where there are any

struct FoundCheckpoint {
  std::filesystem::path dir;
  CheckpointMeta meta;
};

// Which checkpoints stay when a new one is committed; the new one always does.
struct Keep {
  Keep(int64_t newest = 3, int64_t every = 0, bool best = false) : newest(newest), every(every), best(best) {}
  int64_t newest;  // so many of the newest, >= 1
  int64_t every;   // and those whose step is a multiple of it; 0: none
  bool best;       // and, of those with a score in their information (kScore), the newest with the highest
};
inline constexpr const char* kScore = "score";
// Information that only a resume reads: the digest of the rows that come next.
inline constexpr const char* kNextBatch = "digest of the next batch";
// Information of an exported checkpoint: which set of weights it has ("averaged" or "raw") and their dtype.
inline constexpr const char* kWeightsInfo = "weights";
inline constexpr const char* kAveragedInfo = "averaged";

// Writes <run_dir>/checkpoints/step-%09d and returns it. Everything is written to a temporary directory, synced, and
// renamed. A process killed at any moment leaves earlier checkpoints as they were, and never half of a new one. Then
// checkpoints that `keep` does not name are deleted. An existing checkpoint of the same step is replaced. `meta.kind`
// is ignored. Waits for the device if tensors live there; the host then holds a copy of the weights, and one other
// tensor at a time. `before_commit` is called when all but the final name is written. Throws Error(environment) if it
// cannot write; then the temporary directory is gone and older checkpoints stay.
std::filesystem::path save_checkpoint(const std::filesystem::path& run_dir, Stateful& root, const CheckpointMeta& meta,
                                      const Keep& keep, const std::function<void()>& before_commit = nullptr);

// The same from a listing, e.g. that of a Snapshot (hrm/checkpoint/saver.h).
std::filesystem::path save_listing(const std::filesystem::path& run_dir, const StateListing& listing,
                                   const CheckpointMeta& meta, const Keep& keep,
                                   const std::function<void()>& before_commit = nullptr);

// Checkpoints in parts, for entries that ranks share out (StatePart). Every rank writes its part; rank 0 commits all of
// them when it knows that they are on the disk (train/run_checkpoints.h). All write into the same folder of one file
// system.
struct PartLayout {
  int64_t part = 0, parts = 1;  // the rank and the number of ranks
  bool split_weights = false;   // some weight or average is shared out: none is in model.pt then
};

// Rank 0's, with nothing on its way: removes what earlier processes left, and names the folder for the parts.
std::filesystem::path begin_parts(const std::filesystem::path& run_dir, int64_t step);

// Writes what the listing has as one part: only entries that no other part has. On return the files are on the disk.
// Part 0 has the configuration and, unless weights are split, model.pt. Files of an earlier try are replaced. Throws
// Error(environment) if it cannot write; then the part's files are gone.
std::map<std::string, FileFact> write_part(const std::filesystem::path& folder, const StateListing& listing,
                                           const PartLayout& layout, const CheckpointMeta& meta);

// Makes the folder a checkpoint of the run, as save_checkpoint does, and returns it. `files`: what write_part returned
// on all ranks. After Error(environment) it may be tried again.
std::filesystem::path commit_parts(const std::filesystem::path& run_dir, const std::filesystem::path& folder,
                                   const std::map<std::string, FileFact>& files, int64_t parts,
                                   const CheckpointMeta& meta, const Keep& keep,
                                   const std::function<void()>& before_commit = nullptr);

// As save_checkpoint, but only for weights (kind weights). `raw` must hold every weight; `ema` may be empty.
std::filesystem::path save_weights(const std::filesystem::path& run_dir, const ModelWeights& weights,
                                   const CheckpointMeta& meta, const Keep& keep);

// Writes one set of weights as a checkpoint of kind weights that is not in a run: the new folder `folder`, whole or not
// at all. Weights of float32 and bfloat16 become `dtype`; others stay. `files` are copied beside them and listed in the
// manifest. Throws Error(environment), also where `folder` is there already and not empty.
void write_weights_folder(const std::filesystem::path& folder,
                          const std::vector<std::pair<std::string, at::Tensor>>& weights, at::ScalarType dtype,
                          const CheckpointMeta& meta, const std::vector<std::filesystem::path>& files = {});

// Bytes on the disk of one checkpoint with these entries, rounded up.
uint64_t checkpoint_bytes(const StateListing& listing);

// Checks before training that checkpoints of `bytes` each can be written there: room for three (fewer if fewer are
// kept, not counting existing ones), writing, syncing, renaming. Throws Error(environment) with the reason. Returns the
// free bytes.
uint64_t check_volume(const std::filesystem::path& run_dir, uint64_t bytes, const Keep& keep);

// The committed checkpoints of a run, newest first; empty where there is none. Their content is not looked at. Throws
// Error(environment) where they cannot be listed.
std::vector<std::filesystem::path> list_checkpoints(const std::filesystem::path& run_dir);

// The highest score (kScore) of the checkpoints of a run; nullopt where none has one.
std::optional<double> best_score(const std::filesystem::path& run_dir);

// Whether a bad checkpoint loses its name: for who owns the run folder.
enum class Quarantine { no, yes };

// The newest checkpoint whose manifest and digests are right. A corrupt one is logged with its reason and skipped. With
// quarantine it is renamed to bad-step-%09d for inspection, unless it could not be read at all (I/O error, no
// permission), since it may then be good. nullopt: the run never had one. Error(checkpoint): all are corrupt, now or
// when they were renamed.
std::optional<FoundCheckpoint> find_latest_valid(const std::filesystem::path& run_dir,
                                                 Quarantine quarantine = Quarantine::no);

// The newest good checkpoint whose step is at most `step`. Bad ones are skipped as above, none renamed.
std::optional<FoundCheckpoint> find_before(const std::filesystem::path& run_dir, int64_t step);

// Deletes the checkpoints of later steps, each losing its name first. Throws Error(environment).
void delete_after(const std::filesystem::path& run_dir, int64_t step);

// A checkpoint that a user named: a run folder (its latest valid one) or a step folder, which must be valid.
// Throws Error(checkpoint).
FoundCheckpoint open_checkpoint(const std::filesystem::path& run_or_step);

// A step folder whose files another rank has verified: looks at the manifest and the configuration alone. Throws
// Error(checkpoint).
FoundCheckpoint read_meta(const std::filesystem::path& dir);

// Verifies the checkpoint and copies it into the entries of `root`, in place. Entries must agree in name, dtype and
// shape, none missing on either side; of an entry that ranks share out (StatePart) the shape of the whole. Of a
// checkpoint in parts only the files that hold something of this rank's entries are verified and read. Otherwise
// Error(checkpoint) names the first difference and `root` is unchanged. Refuses kind weights. All entries with a prefix
// in `optional` may be missing on one side. If the checkpoint lacks them, those of `root` keep their values; if `root`
// lacks them, they are skipped with a line in the log.
void load_checkpoint(const std::filesystem::path& dir, Stateful& root, const std::vector<std::string>& optional = {});

// Copies the entries of `part`, whose names begin with `prefix`, from the training state of a checkpoint; same rules.
// Returns false and changes nothing if the checkpoint has none of them. Verifies only the manifest and the state file,
// and reads only these entries.
bool load_state_part(const std::filesystem::path& dir, Stateful& part, const std::string& prefix);

// Copies one weight set into the entries of role weight, from a checkpoint of either kind; same rules, but that kind
// weights may hold bfloat16 for float32. Error(checkpoint) for ema if there is none. Matrices named in `by_mean` (by
// their archive names) may have another number of rows here. Each row then becomes the mean of the checkpoint's rows,
// and the log says so.
void load_weights_into(const std::filesystem::path& dir, Stateful& root, WeightSet which = WeightSet::raw,
                       const std::vector<std::string>& by_mean = {});

// Which sets of weights a checkpoint has, whose values are not read.
struct StoredSets {
  bool average = false;       // there are averages
  bool only_average = false;  // as in ModelWeights
};
StoredSets stored_sets(const std::filesystem::path& dir);

// Reads model.pt, after verifying the checkpoint, with our tensor-only reader: nothing in the file is executed.
ModelWeights load_weights(const std::filesystem::path& dir);

}  // namespace hrm::checkpoint
