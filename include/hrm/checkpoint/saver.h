#pragma once
// Saving while training continues: the state is copied to the host between two steps, and a thread writes the copy.

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <condition_variable>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "hrm/checkpoint/checkpoint.h"
#include "hrm/state/registry.h"

namespace hrm::checkpoint {

// A copy of a state on the host. Its memory (page-locked for tensors on a GPU) is allocated once, by the first take()
// or earlier, and again only if the state has other sizes.
class Snapshot {
 public:
  // Allocates the memory for such a state.
  void prepare(const StateListing& like);
  // Copies all entries as they are at this point of the current stream: what is queued on it later may change them.
  // Tensors on the CPU are copied before it returns.
  void take(Stateful& root);
  // Returns when all copies are there.
  void wait();
  // The copies, after wait(); whether a weight is trained (requires_grad) is kept.
  const StateListing& listing() const { return listing_; }

 private:
  StateListing listing_;
  std::shared_ptr<void> block_;
  size_t block_bytes_ = 0;
  bool page_locked_ = false;
  std::optional<c10::Event> copied_;
};

struct SaverOptions {
  Keep keep;
  bool asynchronous = true;                     // else save() returns when the checkpoint is written
  double first_retry_s = 1, last_retry_s = 60;  // pauses after a failed write: doubled from the first to the last
  // Called before a checkpoint is committed, by the thread that writes; what it throws is a failed write.
  std::function<void()> before_commit = {};
};

// Writes the checkpoints of a run, one at a time. A failed write (full disk) is repeated with growing pauses, until it
// succeeds or a newer state replaces it; each failure is logged. At most one copy of the state is held. Only one thread
// may call it, and only one process may use a run folder.
class Saver {
 public:
  Saver(std::filesystem::path run_dir, const SaverOptions& options);
  // Gives up what is not written yet; waits for a write that is under way.
  ~Saver();
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  // Allocates what save() needs for a state like this one; otherwise the first save() takes longer.
  void prepare(const StateListing& like) { snapshot_.prepare(like); }

  // Takes the state as it is now and begins to write it. Waits for a write that is under way; one that failed and would
  // be repeated gives way to the new one.
  void save(Stateful& root, const CheckpointMeta& meta);

  // The same for one part of a checkpoint (hrm/checkpoint/checkpoint.h). When it is on the disk it waits for commit()
  // or drop(). `root`: the entries of this part alone. The retries are this part's.
  void save_part(Stateful& root, const CheckpointMeta& meta, const std::filesystem::path& folder,
                 const PartLayout& layout);
  // Waits until save_part() has written or failed. The files of the part if it is written, else nullopt.
  std::optional<std::map<std::string, FileFact>> part(double patience_s);
  // Whether the part is written, now.
  bool part_written() const;
  // The part that is written belongs to the files of all ranks: with `files` not empty (rank 0's) they are committed,
  // as a checkpoint is written. Otherwise only forgotten here.
  void commit(std::map<std::string, FileFact> files);
  // Waits for a write that is under way, and says so in the log.
  void await_turn();
  // Waits for a write that is under way, then gives up a part that waits for others, and what would be repeated.
  void drop();

  // Waits until nothing is left to write, or this many seconds after a failure. Then throws Error(environment) with the
  // reason, and nothing more is written.
  void finish(double patience_s);

  // The step that was written last by this object; -1: none.
  int64_t saved_step() const;
  // How many states in a row were lost to failed writes: each gave way to a newer one. 0 after a success.
  int64_t lost_in_a_row() const;
  // The last failure's sentence; empty after a success.
  std::string failure() const;

 private:
  // written: a part, which others must join.
  enum class Stage { idle, writing, failed, written };
  void run();
  void begin(std::function<void()> job, Stage after);

  const std::filesystem::path run_dir_;
  const SaverOptions options_;
  Snapshot snapshot_;
  CheckpointMeta meta_;
  std::filesystem::path folder_;  // of the part
  PartLayout layout_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Stage stage_ = Stage::idle;
  std::function<void()> job_;      // of the thread
  Stage after_job_ = Stage::idle;  // when that has been done
  std::map<std::string, FileFact> part_;
  bool end_ = false;
  double pause_s_ = 0;
  int64_t attempts_ = 0;  // of the state that is being written
  int64_t saved_step_ = -1, lost_ = 0;
  std::string failure_;
  std::thread thread_;
};

}  // namespace hrm::checkpoint
