#pragma once
// What the memory allocator of the device holds, and how well it uses it.

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <string>

namespace hrm {

// Bytes. Zero on the CPU, except the host's own line.
struct MemoryReport {
  int64_t allocated = 0;       // in tensors now
  int64_t allocated_peak = 0;  // most at any time since start
  int64_t reserved = 0;        // taken from the driver now: tensors, cached blocks, pools of captured graphs
  int64_t reserved_peak = 0;
  int64_t inactive = 0;            // cached parts of blocks that are partly in use: what fragmentation leaves behind
  int64_t retries = 0;             // allocations that succeeded only after the cache was emptied; each one waits
  int64_t device_used = 0;         // of the whole device: context, libraries and other processes included
  int64_t device_total = 0;        // of the whole device
  int64_t host_resident_peak = 0;  // most physical memory of this process on the host

  // Share of the reserved memory that no tensor was in when most was in use. 0 where nothing is reserved.
  double fragmentation() const {
    return reserved_peak > 0 ? 1.0 - static_cast<double>(allocated_peak) / static_cast<double>(reserved_peak) : 0;
  }
};

// device_used and device_total, which the driver has to be asked for, only with `whole_device`.
MemoryReport memory_report(at::Device device, bool whole_device = true);

// Physical memory of this process on the host now, in bytes; 0 where /proc cannot be read.
int64_t resident_bytes();

// Gives cached memory back to the driver and starts the peaks anew, so that the next report is of later work alone.
// Nothing on the CPU.
void reset_memory_peaks(at::Device device);

// A block of host memory, page-locked if `page_locked`, so that copies from the GPU overlap with other work. It is
// exactly as large as requested; LibTorch's pinned blocks are powers of two. Its pages exist at once, so later use
// costs no page faults. Throws Error(environment) if there is no room.
std::shared_ptr<void> host_block(size_t bytes, bool page_locked);

// For work on the CPU: makes the C library keep freed memory for the next allocation. By default it returns every large
// block to the kernel, and a step pays for each page of its temporaries again: 10,000 page faults in a small model.
// Does nothing if the environment has settings of its own (MALLOC_*_, GLIBC_TUNABLES), or the C library is not glibc.
void keep_freed_host_memory();

// "peak 5.1 GiB in tensors, 5.6 GiB reserved (9 % unused at the peak), 6.2 of 139.8 GiB of the GPU in use"; on the CPU
// "peak 1.2 GiB of resident memory".
std::string memory_text(const MemoryReport& report);

}  // namespace hrm
