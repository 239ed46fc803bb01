#include "train/memory_window.h"

#include <utility>

#include "hrm/base/log.h"
#include "hrm/base/text.h"
#include "hrm/runtime/memory_history.h"

namespace hrm::train {
namespace {

constexpr size_t kRows = 15;

}  // namespace

MemoryWindow::MemoryWindow(const config::ProfilingConfig& config, at::Device device, std::filesystem::path file)
    : device_(device), file_(std::move(file)), most_(config.memory_steps), open_(records_memory(device)) {}

void MemoryWindow::before_step() {
  if (open_ && steps_++ == most_) finish();
}

void MemoryWindow::finish() {
  if (!std::exchange(open_, false)) return;
  const MemorySnapshot snapshot = memory_snapshot(device_);
  stop_memory_history(device_);
  const AllocationsAtPeak peak = allocations_at_peak(snapshot);
  log::info("memory at the peak of the recording: ", human_bytes(peak.bytes), " in ", peak.tensors, " tensors\n",
            allocations_table(peak, kRows), "all of them: ", file_.string(), ", for https://pytorch.org/memory_viz");
  write_memory_snapshot(file_, snapshot);
}

}  // namespace hrm::train
