#pragma once
// What a run writes beside its checkpoints: metrics.jsonl and TensorBoard events. docs/metrics.md lists the fields.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "hrm/formats/tensorboard.h"

namespace hrm::train {

class RunLog {
 public:
  // Creates the run folder; empty: keeps no log, all calls do nothing (benchmarks).
  explicit RunLog(std::filesystem::path run_dir);
  // Cuts off the metrics of later steps, written by a process that died after its last checkpoint, so that each step
  // stands once.
  void truncate_after(int64_t step);

  // One line of metrics.jsonl {"step": ..., "<key>": value, ...} and the same values as TensorBoard scalars. Values
  // that are not finite are written as null.
  void write(int64_t step, const std::vector<std::pair<std::string, double>>& values);

  // Puts the lines on the disk: before a checkpoint, so that it never stands there without the log that led to it.
  void sync();

 private:
  std::filesystem::path run_dir_;
  std::unique_ptr<TensorboardWriter> tensorboard_;
};

}  // namespace hrm::train
