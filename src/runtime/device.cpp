#include "hrm/runtime/device.h"

#include <ATen/Parallel.h>
#include <c10/core/DeviceGuard.h>
#include <strings.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>
#include <thread>

#include "hrm/base/build_info.h"
#include "hrm/base/error.h"
#include "hrm/base/log.h"
#include "hrm/base/text.h"
#include "hrm/build_config.h"
#include "hrm/runtime/memory.h"

#if HRM_WITH_CUDA
#include <ATen/cuda/CUDAContext.h>
#include <c10/core/AllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>
#endif

namespace hrm {
namespace {

// Dense bf16 peaks of the vendors' data sheets, FLOP/s. Matched in order, so longer names come first.
struct KnownPeak {
  const char* name;
  double flops;
};
constexpr KnownPeak kBf16Peaks[] = {
    {"H200", 989e12}, {"H100 PCIe", 756e12}, {"H100 NVL", 835e12}, {"H100", 989e12}, {"B200", 2250e12},
    {"A100", 312e12}, {"L40S", 362e12},      {"A10G", 70e12},      {"L4", 121e12},   {"RTX 4090", 165e12},
};

// Rate of a square fp32 matrix product on this CPU, best of three: what MFU is measured against there. Measured once in
// a process for each number of threads: it takes some 60 ms, and a process may start many runs.
double measure_cpu_peak() {
  static std::mutex mutex;
  static std::map<int, double> known;
  const std::lock_guard lock(mutex);
  const auto [peak, is_new] = known.try_emplace(at::get_num_threads());
  if (!is_new) return peak->second;
  const int64_t n = 768;
  const at::Tensor a = at::ones({n, n}), b = at::ones({n, n});
  double best = 0;
  for (int i = 0; i < 4; ++i) {
    const auto start = std::chrono::steady_clock::now();
    at::mm(a, b);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    if (i > 0) best = std::max(best, 2.0 * n * n * n / took.count());
  }
  return peak->second = best;
}

int default_threads(int processes) {
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / processes);
}

void choose_peak(Runtime& runtime) {
  if (runtime.device.is_cpu()) {
    runtime.peak_flops = measure_cpu_peak();
    runtime.peak_flops_origin = "a 768x768 fp32 matrix product on this CPU at start";
    return;
  }
  for (const KnownPeak& known : kBf16Peaks) {
    if (runtime.device_name.find(known.name) == std::string::npos) continue;
    runtime.peak_flops = known.flops;
    runtime.peak_flops_origin = cat("dense bf16 peak of the ", known.name, " data sheet");
    return;
  }
}

#if HRM_WITH_CUDA
// The program once more, in this process, so that LibTorch reads its environment anew.
void start_again() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');) words.push_back(word);
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  execv("/proc/self/exe", arguments.data());  // returns only when it failed
}

// The variable by which LibTorch's allocator is chosen. That it is set says that we were here already.
constexpr const char* kAllocatorVariable = "PYTORCH_ALLOC_CONF";

std::string choose_allocator(config::GpuAllocator wanted) {
  namespace allocator = c10::cuda::CUDACachingAllocator;
  if (allocator::name() == "cudaMallocAsync") return "cudaMallocAsync";
  const bool expandable = wanted == config::GpuAllocator::expandable;
  c10::CachingAllocator::setAllocatorSettings(expandable ? "expandable_segments:True" : "expandable_segments:False");
  return expandable ? "expandable segments" : "fixed segments";
}
#endif

}  // namespace

// CUDA's rules: machine code runs on the same major and any later minor version, "a" variants only on their own
// version, and PTX on everything later.
std::string kernels_for(int capability, const std::string& archs) {
  std::istringstream list(archs);
  std::string result;
  for (std::string arch; std::getline(list, arch, ',');) {
    const int number = std::atoi(arch.c_str());
    const bool own_only = arch.find('a') != std::string::npos && arch.find("all") == std::string::npos;
    const bool has_code = arch.find("-virtual") == std::string::npos;
    const bool has_ptx = arch.find("-real") == std::string::npos;
    if (own_only) {
      if (number == capability) return "built for " + arch;
    } else if (has_code && number / 10 == capability / 10 && number <= capability) {
      return "built for " + arch;
    } else if (has_ptx && number <= capability) {
      result = "translated from " + arch + " at first use";
    }
  }
  return result;
}

std::string lacking_kernels(int capability, const std::string& archs) {
  const auto sentence = [&](const char* lack, const std::string& wanted) {
    return cat("this build, for ", archs, ", holds no kernels for ", lack,
               ", slower; build again with HRM_CUDA_ARCHS=", wanted);
  };
  if (kernels_for(capability, archs).empty()) {
    return sentence("it: plain ATen does their work", std::to_string(capability));
  }
  if (capability == 90 && archs.find("90a") == std::string::npos) {
    return sentence("Hopper: those for every GPU do their work", "90a");
  }
  return {};
}

std::string why_no_cuda() {
#if HRM_WITH_CUDA
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaErrorInsufficientDriver) {
    int version = 0;  // what the driver supports; 0 where there is none
    if (cudaDriverGetVersion(&version) != cudaSuccess || version == 0) return "no NVIDIA driver is installed here";
    return cat("the NVIDIA driver is older than CUDA 13 needs (580 or newer; it supports CUDA ", version / 1000, ".",
               version % 1000 / 10, "): update the driver");
  }
  if (status != cudaSuccess || count == 0) {
    cudaGetLastError();
    return cat("no NVIDIA GPU is usable here (", status == cudaSuccess ? "none found" : cudaGetErrorString(status),
               ")");
  }
  cudaDeviceProp properties{};
  cudaGetDeviceProperties(&properties, 0);
  if (properties.major * 10 + properties.minor < 75) {
    return cat(properties.name, " has compute capability ", properties.major, ".", properties.minor,
               "; CUDA 13 needs 7.5 or newer");
  }
  return "";
#else
  return "this program was built without CUDA (HRM_CUDA=OFF): build it with HRM_CUDA=ON";
#endif
}

std::string gpu_name() {
#if HRM_WITH_CUDA
  cudaDeviceProp properties{};
  cudaGetDeviceProperties(&properties, 0);
  return properties.name;
#else
  return "";
#endif
}

at::Device choose_device(const config::RuntimeConfig& config) {
  if (config.device == config::DeviceChoice::cpu) return at::kCPU;
  const std::string reason = why_no_cuda();
  if (reason.empty()) return at::Device(at::kCUDA, 0);
  require(config.device != config::DeviceChoice::cuda, ExitCode::environment, "runtime.device is 'cuda', but ", reason,
          "; set runtime.device=cpu to continue without");
  return at::kCPU;
}

void take_one_gpu(int index, int processes) {
#if HRM_WITH_CUDA
  constexpr const char* kVariable = "CUDA_VISIBLE_DEVICES";
  if (processes == 1) return;
  std::vector<std::string> gpus;
  if (const char* listed = std::getenv(kVariable)) {
    std::istringstream list(listed);
    for (std::string gpu; std::getline(list, gpu, ',');) gpus.push_back(gpu);
    if (gpus.size() <= 1) return;
    require(gpus.size() >= static_cast<size_t>(processes), ExitCode::environment, kVariable, "='", listed, "' lists ",
            gpus.size(), " GPUs for ", processes, " ranks on this machine; list one for each, or start fewer ranks");
  }
  const std::string own = gpus.empty() ? std::to_string(index) : gpus[static_cast<size_t>(index)];
  setenv(kVariable, own.c_str(), /*overwrite=*/1);
#else
  (void)index;
  (void)processes;
#endif
}

void restart_for_allocator(const config::RuntimeConfig& config) {
#if HRM_WITH_CUDA
  if (config.allocator != config::GpuAllocator::cuda_malloc_async) return;
  if (c10::cuda::CUDACachingAllocator::name() == "cudaMallocAsync") return;
  const char* set = std::getenv(kAllocatorVariable);
  if (set != nullptr && std::strstr(set, "cudaMallocAsync") != nullptr) return;
  setenv(kAllocatorVariable, "backend:cudaMallocAsync", /*overwrite=*/1);
  start_again();
  log::warn("runtime.allocator=cuda_malloc_async needs a restart of the program, which failed: ", std::strerror(errno),
            "; set ", kAllocatorVariable, "=backend:cudaMallocAsync before starting it");
#else
  (void)config;
#endif
}

Runtime start_runtime(const config::Config& whole, int processes_here) {
  const config::RuntimeConfig& config = whole.runtime;
  const int threads = config.threads > 0 ? static_cast<int>(config.threads) : default_threads(processes_here);
  at::set_num_threads(threads);

  Runtime runtime;
  runtime.device = choose_device(config);
#if HRM_WITH_CUDA
  if (runtime.device.is_cpu() && config.device == config::DeviceChoice::automatic) {
    log::info("running on the CPU: ", why_no_cuda());
  }
#endif

  const bool reference_ops = whole.ops.backend == config::OpsBackend::reference;
  runtime.precision = choose_precision(whole.precision, runtime.device, reference_ops);
  runtime.compute_dtype = runtime.precision.compute_dtype;
  apply_arithmetic(runtime.precision, config, runtime.device);

#if HRM_WITH_CUDA
  if (runtime.device.is_cuda()) {
    restart_for_allocator(config);
    runtime.allocator = choose_allocator(config.allocator);
    cudaDeviceProp properties{};
    cudaGetDeviceProperties(&properties, 0);
    runtime.device_name = properties.name;
    const int capability = properties.major * 10 + properties.minor;
    runtime.own_kernels = !kernels_for(capability, build_info("cuda_archs")).empty();
    runtime.lacking_kernels = lacking_kernels(capability, build_info("cuda_archs"));
  }
#endif
  if (runtime.device.is_cpu()) {
    runtime.device_name = cat("CPU, ", threads, threads == 1 ? " thread" : " threads");
    keep_freed_host_memory();
  }
  choose_peak(runtime);
  return runtime;
}

std::string thread_waiting() {
  const char* policy = std::getenv("OMP_WAIT_POLICY");
  if (policy != nullptr && strcasecmp(policy, "passive") == 0) return "asleep (OMP_WAIT_POLICY)";
  const char* count = std::getenv("GOMP_SPINCOUNT");
  if (count != nullptr) return cat("spinning ", printable_start(count), " times, then asleep (GOMP_SPINCOUNT)");
  return "by spinning";
}

void synchronize(at::Device device) {
  if (device.is_cpu()) return;
#if HRM_WITH_CUDA
  c10::cuda::device_synchronize();
#endif
}

}  // namespace hrm
