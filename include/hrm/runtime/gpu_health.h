#pragma once
// What the driver says about the GPU that a run uses: utilisation, power, clocks, temperature, memory and traffic, by
// NVIDIA's management library (NVML). It is sampled by a thread of its own, because some questions take 20 ms.

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace hrm {

// Which GPU it is. Independent of CUDA_VISIBLE_DEVICES, which NVML does not read. Empty texts on the CPU.
struct GpuAddress {
  std::string pci_bus_id;  // "0000:3B:00.0"
  std::string uuid;        // "b4e2...-...", without the prefix "GPU-" or "MIG-"
};
GpuAddress gpu_address(at::Device device);

// Bits of NVML's reasons why clocks are below their maximum, and of perf/gpu/throttle_reasons.
enum ThrottleReason : uint64_t {
  kIdle = 0x1,
  kApplicationClocks = 0x2,
  kPowerCap = 0x4,          // the ordinary power limit: what a loaded GPU runs into
  kHardwareSlowdown = 0x8,  // heat or power, by the hardware
  kSyncBoost = 0x10,
  kThermalSoftware = 0x20,
  kThermalHardware = 0x40,
  kPowerBrake = 0x80,  // the supply asks for less
  kDisplayClocks = 0x100,
};
// What a machine in good order never shows: heat, or a power brake.
inline constexpr uint64_t kBadThrottling = kHardwareSlowdown | kThermalSoftware | kThermalHardware | kPowerBrake;

// "heat (by the driver), power brake"; "none".
std::string throttle_text(uint64_t reasons);

struct GpuHealthOptions {
  GpuAddress gpu;
  std::string library = "libnvidia-ml.so.1";
  double interval_s = 1;                         // between samples
  double calm_s = 60;                            // without bad throttling, until it counts as another episode
  double patience_s = 2;                         // at the end, with a driver that does not answer
  std::function<void(const std::string&)> warn;  // called by the sampling thread; empty: log::warn
};

class GpuHealth {
 public:
  using Values = std::vector<std::pair<std::string, double>>;

  // Null, with the reason, where there is no NVML or it does not know the GPU.
  static std::unique_ptr<GpuHealth> start(const GpuHealthOptions& options, std::string& why_not);
  // Ends the sampling. A driver that does not answer is waited for no longer than options.patience_s.
  ~GpuHealth();
  GpuHealth(const GpuHealth&) = delete;
  GpuHealth& operator=(const GpuHealth&) = delete;

  // Of the samples since the last call; without one those of the last call. What the driver does not tell is left out:
  //   utilization            share of the time in which a kernel ran, 0 to 1; mean
  //   power_w, power_limit_w mean; the limit in force
  //   sm_clock_mhz, sm_clock_max_mhz, memory_clock_mhz   mean; the highest that the GPU has
  //   throttle_reasons       bits of ThrottleReason, all that occurred
  //   temperature_c          maximum
  //   memory_used_bytes      of all processes; maximum
  //   pcie_tx_bytes_per_s, pcie_rx_bytes_per_s       mean
  //   nvlink_tx_bytes_per_s, nvlink_rx_bytes_per_s   of all links, payload; mean
  // Of a GPU that is divided (MIG), clocks, power and temperature are those of the whole GPU, memory is that of the
  // instance, and utilisation and traffic are left out. Takes no time.
  Values take();

  // "98 %, 650 W, 71 C, 1755 MHz", of what `values` has; with the bad reasons for lower clocks.
  static std::string text(const Values& values);

 private:
  struct State;
  explicit GpuHealth(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;  // the thread's, too, which may hang in the driver
  std::thread thread_;
};

// Of a training's GPU, asked every `interval_s` seconds. Null on a CPU, with 0, and where NVML is absent, which is
// logged.
std::unique_ptr<GpuHealth> watch_gpu(at::Device device, double interval_s);

}  // namespace hrm
