#include "hrm/runtime/memory.h"

#include <ATen/Context.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "hrm/base/error.h"
#include "hrm/base/text.h"
#include "hrm/build_config.h"

#if defined(__GLIBC__)
#include <malloc.h>
#endif

#if HRM_WITH_CUDA
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>
#endif

namespace hrm {

std::shared_ptr<void> host_block(size_t bytes, bool page_locked) {
  const auto refuse = [&](const char* reason) {
    fail(ExitCode::environment, "no room for ", human_bytes(bytes), " of host memory",
         page_locked ? ", page-locked" : "", ": ", reason);
  };
  if (bytes == 0) return nullptr;
#if HRM_WITH_CUDA
  if (page_locked) {
    void* block = nullptr;
    const cudaError_t error = cudaMallocHost(&block, bytes);
    if (error != cudaSuccess) {
      cudaGetLastError();
      refuse(cudaGetErrorString(error));
    }
    return {block, [](void* memory) { cudaFreeHost(memory); }};
  }
#endif
  void* block = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (block == MAP_FAILED) refuse(std::strerror(errno));
  return {block, [bytes](void* memory) { ::munmap(memory, bytes); }};
}

void keep_freed_host_memory() {
#if defined(__GLIBC__)
  for (const char* name : {"MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"}) {
    if (std::getenv(name) != nullptr) return;
  }
  mallopt(M_MMAP_MAX, 0);         // large blocks come from the heap, too
  mallopt(M_TRIM_THRESHOLD, -1);  // and the heap never shrinks
#endif
}

MemoryReport memory_report(at::Device device, bool whole_device) {
  MemoryReport report;
  rusage usage{};
  if (getrusage(RUSAGE_SELF, &usage) == 0) report.host_resident_peak = int64_t{usage.ru_maxrss} * 1024;
#if HRM_WITH_CUDA
  if (device.is_cuda()) {
    at::globalContext().lazyInitDevice(at::kCUDA);  // before that the allocator knows no device
    const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(device.index());
    report.allocated = stats.allocated_bytes[0].current;
    report.allocated_peak = stats.allocated_bytes[0].peak;
    report.reserved = stats.reserved_bytes[0].current;
    report.reserved_peak = stats.reserved_bytes[0].peak;
    report.inactive = stats.inactive_split_bytes[0].current;
    report.retries = stats.num_alloc_retries;
    if (!whole_device) return report;
    const c10::cuda::CUDAGuard guard(device);
    size_t free = 0, total = 0;
    if (cudaMemGetInfo(&free, &total) == cudaSuccess) {
      report.device_used = static_cast<int64_t>(total - free);
      report.device_total = static_cast<int64_t>(total);
    } else {
      cudaGetLastError();
    }
  }
#else
  (void)device, (void)whole_device;
#endif
  return report;
}

int64_t resident_bytes() {
  std::ifstream in("/proc/self/statm");
  int64_t size = 0, resident = 0;
  return in >> size >> resident ? resident * sysconf(_SC_PAGESIZE) : 0;
}

void reset_memory_peaks(at::Device device) {
#if HRM_WITH_CUDA
  if (!device.is_cuda()) return;
  at::globalContext().lazyInitDevice(at::kCUDA);
  c10::cuda::CUDACachingAllocator::emptyCache();
  c10::cuda::CUDACachingAllocator::resetPeakStats(device.index());
#else
  (void)device;
#endif
}

std::string memory_text(const MemoryReport& report) {
  const auto bytes = [](int64_t count) { return human_bytes(static_cast<uint64_t>(count)); };
  if (report.device_total == 0) return cat("peak ", bytes(report.host_resident_peak), " of resident memory");
  return cat("peak ", bytes(report.allocated_peak), " in tensors, ", bytes(report.reserved_peak), " reserved (",
             std::lround(100 * report.fragmentation()), " % unused at the peak), ", bytes(report.device_used), " of ",
             bytes(report.device_total), " of the GPU in use");
}

}  // namespace hrm
