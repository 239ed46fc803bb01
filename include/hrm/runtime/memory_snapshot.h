#pragma once
// What the allocator of a GPU holds and has done, as plain values: tables, and a file for PyTorch's memory viewer
// (https://pytorch.org/memory_viz). The values come from hrm/runtime/memory_history.h.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace hrm {

// Who asked for memory.
struct AllocationSource {
  std::string phase;                         // the innermost range of hrm/runtime/nvtx.h, or "start"
  std::vector<std::string> operations = {};  // innermost first; empty where operations are not recorded
};
using SourcePtr = std::shared_ptr<const AllocationSource>;  // null: before the recording

struct MemoryBlock {
  uint64_t size = 0;       // bytes, as the allocator rounds them
  uint64_t requested = 0;  // bytes
  bool allocated = false;  // a tensor holds it
  bool active = false;     // or another stream may still use it
  SourcePtr source = nullptr;
};

// A piece of memory that the allocator has from the driver, cut into blocks.
struct MemorySegment {
  uint64_t address = 0, size = 0, stream = 0;
  bool large = false;                           // of blocks above 1 MiB
  bool expandable = false;                      // grows in place
  std::pair<uint64_t, uint64_t> pool = {0, 0};  // {0, 0}: the default pool; others belong to CUDA graphs
  std::vector<MemoryBlock> blocks = {};         // by address, without gaps
};

struct MemoryEvent {
  enum class Action {
    alloc,
    free_requested,
    free_completed,
    segment_alloc,
    segment_free,
    segment_map,
    segment_unmap,
    snapshot,
    out_of_memory
  };
  Action action = Action::alloc;
  uint64_t address = 0;  // of out_of_memory: bytes that were free on the device
  uint64_t size = 0;     // bytes, as requested
  uint64_t stream = 0;
  int64_t time_us = 0;  // since the epoch
  SourcePtr source = nullptr;
};

struct MemorySnapshot {
  int device = 0;
  bool expandable_segments = false;
  std::vector<MemorySegment> segments = {};
  std::vector<MemoryEvent> events = {};  // in order of time; the last ones, where there were too many
};

// Tensors of one size that one operation of one phase made.
struct AllocationGroup {
  std::string phase, operation;  // operation: "" where it was not recorded
  uint64_t each = 0;             // bytes
  int64_t tensors = 0;
  uint64_t bytes() const { return each * static_cast<uint64_t>(tensors); }
};

struct AllocationsAtPeak {
  uint64_t bytes = 0;  // in tensors at the peak of the recording
  int64_t tensors = 0;
  std::vector<AllocationGroup> groups;  // most bytes first
};
// The tensors that were there when most bytes were in tensors, between the first event and the last.
AllocationsAtPeak allocations_at_peak(const MemorySnapshot& snapshot);
// The tensors that are there now.
AllocationsAtPeak allocations_now(const MemorySnapshot& snapshot);
// A table of the `most` largest groups, with a line for the rest. Ends with a newline.
std::string allocations_table(const AllocationsAtPeak& peak, size_t most);

// One line for each pool of memory and size of blocks: bytes from the driver, in tensors, and free between tensors.
struct PoolUse {
  std::string name;  // "default, large blocks", "graphs, small blocks"
  uint64_t reserved = 0, allocated = 0;
  uint64_t unused_parts = 0;  // free in segments in which tensors are
  size_t segments = 0;
};
std::vector<PoolUse> pool_uses(const MemorySnapshot& snapshot);
std::string pools_text(const std::vector<PoolUse>& pools);

// Writes the pickle that PyTorch's viewer and torch/cuda/_memory_viz.py open. A frame is an operation, the outermost
// frame the phase. Error(environment) that names the file.
void write_memory_snapshot(const std::filesystem::path& file, const MemorySnapshot& snapshot);

}  // namespace hrm
