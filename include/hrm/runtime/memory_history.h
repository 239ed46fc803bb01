#pragma once
// Records what the GPU's allocator does, and who asks for memory. LibTorch's allocator keeps the history; the phases
// come from hrm/runtime/nvtx.h, the operations from LibTorch's dispatcher. All of it is for the whole process.

#include <c10/core/Device.h>

#include <filesystem>
#include <string>

#include "hrm/runtime/memory_snapshot.h"

namespace hrm {

// From now on each allocation of `device` is recorded with its phase and its operations, up to the last 200,000 events.
// Operations cost time on the host while this is on. Replayed graphs allocate nothing: what they
// use is recorded when they are captured. Error(usage) on a CPU, Error(environment) with cudaMallocAsync, whose memory
// LibTorch does not see.
void start_memory_history(at::Device device);
bool records_memory(at::Device device);
// Back to what watch_out_of_memory() has set, or to none.
void stop_memory_history(at::Device device);

// Without a history the snapshot has no events. Waits for nothing. Error(environment) with cudaMallocAsync.
MemorySnapshot memory_snapshot(at::Device device);

// When an allocation fails for good, a snapshot is written to `file`, and describe_exception() names the file and what
// took most of the memory. From now on each allocation is recorded with its phase: one pointer each. An empty `file`:
// names what took most memory and writes nothing. Does nothing on a CPU or with cudaMallocAsync.
void watch_out_of_memory(at::Device device, const std::filesystem::path& file);
// "; most of it: ...; <file> has the rest" of the last failure. Empty if there was none.
std::string out_of_memory_text();

// For hrm/runtime/nvtx.h: the phase that this thread is in. `name` must be a literal.
void enter_memory_phase(const char* name);
void leave_memory_phase();

// The table of pools for a log; empty on a CPU and with cudaMallocAsync.
std::string memory_pools_text(at::Device device);

}  // namespace hrm
