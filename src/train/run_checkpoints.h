#pragma once
// The checkpoints of a run: of one rank or of several, each of which may hold only a part of the state.

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "hrm/checkpoint/saver.h"
#include "hrm/parallel/comm.h"
#include "hrm/parallel/replicas.h"
#include "hrm/state/registry.h"

namespace hrm::train {

// All ranks call the same methods in the same order; unless it says otherwise they are collective operations. Where
// every entry is whole, rank 0 alone writes a checkpoint of one part. Otherwise each rank writes what it holds, and
// rank 0 commits the parts when all ranks have said that theirs are on the disk.
class RunCheckpoints {
 public:
  // `state` and `comm` must outlive this.
  RunCheckpoints(Stateful& state, parallel::Comm& comm, std::filesystem::path run_dir,
                 checkpoint::SaverOptions options);

  bool in_parts() const { return owned_.owned().any_split; }
  // On the disk, of the parts of all ranks; rounded up.
  uint64_t bytes() const { return bytes_; }
  // Not collective: the memory for what this rank writes; otherwise the first save() allocates it.
  void prepare_memory();

  // Takes the state as it is now and begins to write it; not asynchronous, it returns when that is done. What is on its
  // way to the disk is committed, or given up where a rank could not write. `meta`: rank 0's counts, of the others the
  // step alone.
  void save(const checkpoint::CheckpointMeta& meta);

  // Not collective: whether this rank's part is on the disk and waits for those of others.
  bool part_written() const { return open_ && saver_->part_written(); }
  // Commits the parts if every rank has written its own.
  void commit_if_written();

  // Returns when nothing is left to write, on every rank, or this many seconds after a failure: then throws
  // Error(environment) with the reason, and nothing more is written.
  void finish(double patience_s);

  // How many states in a row were lost to failed writes, and the last failure.
  int64_t lost_in_a_row() const { return saver_ ? saver_->lost_in_a_row() : 0; }
  std::string failure() const;

  // Writes the state at once, without a copy of it, as the only checkpoint of another folder. Rank 0 returns it. Throws
  // Error(environment) on every rank.
  std::filesystem::path dump(const std::filesystem::path& folder, const checkpoint::CheckpointMeta& meta);

 private:
  void settle(double patience_s);
  checkpoint::PartLayout layout() const;

  parallel::Comm& comm_;
  parallel::OwnedState owned_;
  std::filesystem::path run_dir_;
  std::unique_ptr<checkpoint::Saver> saver_;  // of ranks that write
  uint64_t bytes_ = 0;
  bool asynchronous_;
  bool open_ = false;    // parts are on their way, or wait for each other
  std::string failure_;  // of the parts before
};

}  // namespace hrm::train
