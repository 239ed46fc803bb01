#pragma once
// What a run writes beside its checkpoints: metrics.jsonl and TensorBoard events. docs/metrics.md lists the fields.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "hrm/formats/tensorboard.h"

namespace hrm::train {

class RunLog {
 public:
  // Creates the run folder; empty: keeps no log, all calls do nothing (benchmarks).
  explicit RunLog(std::filesystem::path run_dir);
  // Cuts off metrics of later steps, written by a process that died after its last checkpoint, so each step occurs
  // once. TensorBoard is told to drop its records of them.
  void truncate_after(int64_t step);

  // One line of metrics.jsonl {"step": ..., "<key>": value, ...} and the same values as TensorBoard scalars. Values
  // that are not finite are written as null. Lines that cannot be written (full disk) are kept and tried again with the
  // next one; TensorBoard records are lost then, and counted. Throws Error(environment) when too many lines wait.
  void write(int64_t step, const std::vector<std::pair<std::string, double>>& values);

  // Puts the lines on the disk: before a checkpoint, so that it never is there without the log that led to it.
  // Throws Error(environment) while lines cannot be written. May be called by another thread than write().
  void sync();

 private:
  void flush();
  void write_tensorboard(int64_t step, const std::vector<std::pair<std::string, double>>& values);

  std::filesystem::path run_dir_, file_;
  std::mutex mutex_;     // of waiting_ and the file
  std::string waiting_;  // lines that are not in the file
  bool failing_ = false;
  std::unique_ptr<TensorboardWriter> tensorboard_;
  bool tensorboard_failing_ = false;
  int64_t records_lost_ = 0;
};

}  // namespace hrm::train
