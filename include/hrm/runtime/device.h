#pragma once
// Device, memory and threads of a process, decided once at start; arithmetic is in precision.h.

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <string>

#include "hrm/config/config.h"
#include "hrm/runtime/precision.h"

namespace hrm {

struct Runtime {
  at::Device device = at::kCPU;
  at::ScalarType compute_dtype = at::kFloat;  // precision.compute_dtype
  Precision precision;
  std::string allocator;          // "expandable segments", "fixed segments", "cudaMallocAsync"; empty on the CPU
  std::string device_name;        // "NVIDIA H200", or "CPU, 2 threads"
  std::string lacking_kernels;    // what this build lacks for the device, as a sentence; empty: nothing
  bool own_kernels = true;        // this build holds kernels of ours for it; without them plain ATen does the work
  double peak_flops = 0;          // FLOP/s that MFU is measured against; 0 = unknown
  std::string peak_flops_origin;  // where that number comes from
};

// Applies config.runtime and config.precision to the process (threads, allocator, arithmetic, determinism) and chooses
// the device. If `auto` chooses the CPU, it says why. Throws errors of choose_device and choose_precision. Call it
// before the first tensor operation. LibTorch chooses its allocator while its library is loaded. So
// runtime.allocator=cuda_malloc_async restarts the program with the same arguments and the choice in its environment.
// Call this before reading standard input or holding anything that must survive, or call restart_for_allocator first.
// `processes_here`: processes that share this machine's cores; each uses its part of them as threads.
Runtime start_runtime(const config::Config& config, int processes_here = 1);

// How the CPU threads of this process wait for each other, for the log. "by spinning" unless OMP_WAIT_POLICY or
// GOMP_SPINCOUNT said otherwise when the program started (libgomp reads them before main()).
std::string thread_waiting();

// Leaves this process, the index-th of `processes` on this machine, one GPU, by CUDA_VISIBLE_DEVICES: the index-th of
// those that the variable lists, or of all. Where it lists but one, the launcher has given each process its own. Call
// it before anything asks CUDA for a device. Throws Error (environment) when the variable lists too few. Nothing to do
// in a build without CUDA or for one process.
void take_one_gpu(int index, int processes);

// The restart of start_runtime, where it needs one, at once.
void restart_for_allocator(const config::RuntimeConfig& config);

// What config.device means here. Error(environment) with the reason when `cuda` is asked for and cannot be used.
at::Device choose_device(const config::RuntimeConfig& config);

// Empty when a CUDA device can be used, otherwise one sentence with the reason.
std::string why_no_cuda();

// The name of the first GPU, "NVIDIA H200"; where why_no_cuda() is empty.
std::string gpu_name();

// How our CUDA kernels run on a GPU of this compute capability (90 for 9.0) if they are built for `archs`
// (build_info("cuda_archs")), e.g. "built for 90a"; empty if none of them does.
std::string kernels_for(int capability, const std::string& archs);

// What they lack there, with the remedy, as a sentence; empty: nothing. Those for Hopper are part of 90a alone.
std::string lacking_kernels(int capability, const std::string& archs);

// Waits until all work queued on the device is done; nothing to do on the CPU.
void synchronize(at::Device device);

}  // namespace hrm
