#include "hrm/runtime/gpu_health.h"

#include <signal.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <optional>

#include "hrm/base/error.h"
#include "hrm/base/log.h"
#include "hrm/build_config.h"
#include "nvml.h"

#if HRM_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

namespace hrm {
namespace {

using Clock = std::chrono::steady_clock;

// How the samples of a value become one number.
enum class Fold { mean, maximum, bits, last };
struct ValueKind {
  const char* name;
  Fold fold;
};
enum Value : size_t {
  utilization,
  power_w,
  power_limit_w,
  sm_clock_mhz,
  sm_clock_max_mhz,
  memory_clock_mhz,
  throttle_reasons,
  temperature_c,
  memory_used_bytes,
  pcie_tx_bytes_per_s,
  pcie_rx_bytes_per_s,
  nvlink_tx_bytes_per_s,
  nvlink_rx_bytes_per_s,
  kValues,
};
constexpr std::array<ValueKind, kValues> kKinds{{{"utilization", Fold::mean},
                                                 {"power_w", Fold::mean},
                                                 {"power_limit_w", Fold::last},
                                                 {"sm_clock_mhz", Fold::mean},
                                                 {"sm_clock_max_mhz", Fold::last},
                                                 {"memory_clock_mhz", Fold::mean},
                                                 {"throttle_reasons", Fold::bits},
                                                 {"temperature_c", Fold::maximum},
                                                 {"memory_used_bytes", Fold::maximum},
                                                 {"pcie_tx_bytes_per_s", Fold::mean},
                                                 {"pcie_rx_bytes_per_s", Fold::mean},
                                                 {"nvlink_tx_bytes_per_s", Fold::mean},
                                                 {"nvlink_rx_bytes_per_s", Fold::mean}}};
using Sample = std::array<std::optional<double>, kValues>;

// A question of one number, times a unit; no answer leaves the value out.
template <class Function, class... Args>
std::optional<double> ask(Function function, double unit, nvml::Device device, Args... args) {
  unsigned value = 0;
  if (function == nullptr || function(device, args..., &value) != nvml::kSuccess) return std::nullopt;
  return unit * value;
}

double number_of(const nvml::FieldValue& field) {
  switch (field.type) {
    case 0:
      return field.value.as_double;
    case 1:
      return field.value.as_unsigned;
    case 2:
      return static_cast<double>(field.value.as_unsigned_long);
    case 4:
      return static_cast<double>(field.value.as_long_long);
    default:
      return static_cast<double>(field.value.as_unsigned_long_long);
  }
}

}  // namespace

GpuAddress gpu_address([[maybe_unused]] at::Device device) {
  GpuAddress address;
#if HRM_WITH_CUDA
  cudaDeviceProp properties{};
  std::array<char, 32> bus{};
  if (!device.is_cuda() || cudaDeviceGetPCIBusId(bus.data(), static_cast<int>(bus.size()), device.index()) != 0 ||
      cudaGetDeviceProperties(&properties, device.index()) != 0) {
    cudaGetLastError();
    return address;
  }
  address.pci_bus_id = bus.data();
  for (int i = 0; i < 16; ++i) {
    std::array<char, 3> digits{};
    std::snprintf(digits.data(), digits.size(), "%02x", static_cast<unsigned char>(properties.uuid.bytes[i]));
    address.uuid += cat(i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", digits.data());
  }
#endif
  return address;
}

std::string throttle_text(uint64_t reasons) {
  constexpr std::array<std::pair<uint64_t, const char*>, 9> kNames{{{kThermalHardware, "heat (by the hardware)"},
                                                                    {kThermalSoftware, "heat (by the driver)"},
                                                                    {kPowerBrake, "power brake"},
                                                                    {kHardwareSlowdown, "hardware slowdown"},
                                                                    {kPowerCap, "power limit"},
                                                                    {kApplicationClocks, "application clocks"},
                                                                    {kSyncBoost, "sync boost"},
                                                                    {kDisplayClocks, "display clocks"},
                                                                    {kIdle, "idle"}}};
  std::string text;
  for (const auto& [bit, name] : kNames) {
    if ((reasons & bit) != 0) text += cat(text.empty() ? "" : ", ", name);
  }
  return text.empty() ? "none" : text;
}

struct GpuHealth::State {
  nvml::Library library;
  nvml::Device device = nullptr;    // the whole GPU
  nvml::Device instance = nullptr;  // with MIG ours of it, null where NVML does not find it
  bool divided = false;             // MIG
  GpuHealthOptions options;

  std::mutex mutex;
  std::condition_variable changed;
  bool ending = false, ended = false;
  std::vector<Sample> samples;  // since the last take()
  Values last;

  // The thread's.
  std::optional<Clock::time_point> links_at;
  std::array<double, 2> links_kib{};
  std::optional<Clock::time_point> throttled_at;

  void run() {
    // Signals are for the threads that wait for them.
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
    std::unique_lock lock(mutex);
    const auto interval = std::chrono::duration<double>(options.interval_s);
    while (!ending) {
      lock.unlock();
      const Sample sample = measure();
      watch(sample);
      lock.lock();
      // Of a run that logs once a day the last samples are enough.
      constexpr size_t kMostSamples = 20000;
      if (samples.size() >= kMostSamples) samples.erase(samples.begin(), samples.begin() + kMostSamples / 2);
      samples.push_back(sample);
      changed.wait_for(lock, interval, [&] { return ending; });
    }
    library.shutdown();
    ended = true;
    changed.notify_all();
  }

  Sample measure() {
    Sample sample;
    sample[power_w] = ask(library.power_mw, 1e-3, device);
    sample[power_limit_w] = ask(library.power_limit_mw, 1e-3, device);
    sample[sm_clock_mhz] = ask(library.clock_mhz, 1, device, nvml::kClockSm);
    sample[sm_clock_max_mhz] = ask(library.max_clock_mhz, 1, device, nvml::kClockSm);
    sample[memory_clock_mhz] = ask(library.clock_mhz, 1, device, nvml::kClockMemory);
    sample[temperature_c] = ask(library.temperature_c, 1, device, nvml::kTemperatureGpu);
    unsigned long long reasons = 0;
    if (library.throttle_reasons != nullptr && library.throttle_reasons(device, &reasons) == nvml::kSuccess) {
      sample[throttle_reasons] = static_cast<double>(reasons);
    }
    const nvml::Device own = divided ? instance : device;
    nvml::Memory memory{};
    if (own != nullptr && library.memory != nullptr && library.memory(own, &memory) == nvml::kSuccess) {
      sample[memory_used_bytes] = static_cast<double>(memory.used);
    }
    if (divided) return sample;  // the rest is of all instances
    nvml::Utilization shares{};
    if (library.utilization != nullptr && library.utilization(device, &shares) == nvml::kSuccess) {
      sample[utilization] = 0.01 * shares.gpu;
    }
    sample[pcie_tx_bytes_per_s] = ask(library.pcie_kb_per_s, 1e3, device, nvml::kPcieSent);
    sample[pcie_rx_bytes_per_s] = ask(library.pcie_kb_per_s, 1e3, device, nvml::kPcieReceived);
    measure_links(sample);
    return sample;
  }

  // NVLink has counters: their rate since the sample before.
  void measure_links(Sample& sample) {
    std::array<nvml::FieldValue, 2> fields{};
    fields[0].field = nvml::kNvlinkSent;
    fields[1].field = nvml::kNvlinkReceived;
    for (nvml::FieldValue& field : fields) field.scope = nvml::kAllLinks;
    const Clock::time_point now = Clock::now();
    if (library.field_values == nullptr || library.field_values(device, 2, fields.data()) != nvml::kSuccess) return;
    if (fields[0].result != nvml::kSuccess || fields[1].result != nvml::kSuccess) return;
    const std::array<double, 2> kib{number_of(fields[0]), number_of(fields[1])};
    const double seconds = links_at ? std::chrono::duration<double>(now - *links_at).count() : 0;
    // Counters that went back were reset.
    if (seconds > 0 && kib[0] >= links_kib[0] && kib[1] >= links_kib[1]) {
      sample[nvlink_tx_bytes_per_s] = 1024 * (kib[0] - links_kib[0]) / seconds;
      sample[nvlink_rx_bytes_per_s] = 1024 * (kib[1] - links_kib[1]) / seconds;
    }
    links_at = now;
    links_kib = kib;
  }

  // One warning an episode. It ends when nothing bad was seen for calm_s.
  void watch(const Sample& sample) {
    if (!sample[throttle_reasons]) return;
    const uint64_t bad = static_cast<uint64_t>(*sample[throttle_reasons]) & kBadThrottling;
    if (bad == 0) return;
    const Clock::time_point now = Clock::now();
    const bool known = throttled_at && std::chrono::duration<double>(now - *throttled_at).count() < options.calm_s;
    throttled_at = now;
    if (known) return;
    const bool hot = (bad & (kThermalSoftware | kThermalHardware)) != 0;
    std::string facts;
    if (sample[temperature_c]) facts += cat(*sample[temperature_c], " C");
    if (sample[power_w]) facts += cat(facts.empty() ? "" : ", ", std::lround(*sample[power_w]), " W");
    if (sample[sm_clock_mhz]) {
      facts += cat(facts.empty() ? "" : ", ", *sample[sm_clock_mhz]);
      facts += sample[sm_clock_max_mhz] ? cat(" of ", *sample[sm_clock_max_mhz], " MHz") : " MHz";
    }
    options.warn(cat("the clocks of GPU ", options.gpu.pci_bus_id, " are throttled: ", throttle_text(bad),
                     facts.empty() ? "" : cat(" (", facts, ")"), "; steps take longer until it ends; check its ",
                     hot ? "cooling" : "power supply and cooling"));
  }

  Values summary() const {
    Values out;
    for (size_t i = 0; i < kValues; ++i) {
      double sum = 0, most = 0, last_value = 0;
      uint64_t bits = 0;
      int64_t count = 0;
      for (const Sample& sample : samples) {
        if (!sample[i]) continue;
        last_value = *sample[i];
        sum += last_value;
        most = count == 0 ? last_value : std::max(most, last_value);
        if (kKinds[i].fold == Fold::bits) bits |= static_cast<uint64_t>(last_value);
        ++count;
      }
      if (count == 0) continue;
      const Fold fold = kKinds[i].fold;
      out.emplace_back(kKinds[i].name, fold == Fold::mean      ? sum / static_cast<double>(count)
                                       : fold == Fold::maximum ? most
                                       : fold == Fold::bits    ? static_cast<double>(bits)
                                                               : last_value);
    }
    return out;
  }
};

std::unique_ptr<GpuHealth> GpuHealth::start(const GpuHealthOptions& options, std::string& why_not) {
  auto state = std::make_shared<State>();
  state->options = options;
  if (!state->options.warn) state->options.warn = [](const std::string& text) { log::warn(text); };
  nvml::Library& library = state->library;
  if (!nvml::open(options.library, library, why_not)) return nullptr;
  const nvml::Result result = library.handle_by_pci_bus_id(options.gpu.pci_bus_id.c_str(), &state->device);
  if (result != nvml::kSuccess) {
    why_not = cat("NVML does not know the GPU ", options.gpu.pci_bus_id, " (error ", result, ")");
    library.shutdown();
    return nullptr;
  }
  unsigned now = 0, later = 0;
  state->divided =
      library.mig_mode != nullptr && library.mig_mode(state->device, &now, &later) == nvml::kSuccess && now == 1;
  if (state->divided && library.handle_by_uuid != nullptr &&
      library.handle_by_uuid(cat("MIG-", options.gpu.uuid).c_str(), &state->instance) != nvml::kSuccess) {
    state->instance = nullptr;
  }
  return std::unique_ptr<GpuHealth>(new GpuHealth(std::move(state)));
}

GpuHealth::GpuHealth(std::shared_ptr<State> state) : state_(std::move(state)) {
  thread_ = std::thread([held = state_] { held->run(); });
}

GpuHealth::~GpuHealth() {
  std::unique_lock lock(state_->mutex);
  state_->ending = true;
  state_->changed.notify_all();
  const bool ended = state_->changed.wait_for(lock, std::chrono::duration<double>(state_->options.patience_s),
                                              [&] { return state_->ended; });
  lock.unlock();
  if (ended) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

std::unique_ptr<GpuHealth> watch_gpu(at::Device device, double interval_s) {
  if (!device.is_cuda() || interval_s <= 0) return nullptr;
  GpuHealthOptions options;
  options.gpu = gpu_address(device);
  options.interval_s = interval_s;
  std::string why_not;
  auto health = GpuHealth::start(options, why_not);
  if (health == nullptr) log::info("GPU health   not known: ", why_not);
  return health;
}

GpuHealth::Values GpuHealth::take() {
  const std::lock_guard lock(state_->mutex);
  if (!state_->samples.empty()) state_->last = state_->summary();
  state_->samples.clear();
  return state_->last;
}

std::string GpuHealth::text(const Values& values) {
  std::string out;
  const auto find = [&](const char* name) -> const double* {
    for (const auto& [key, value] : values) {
      if (key == name) return &value;
    }
    return nullptr;
  };
  const auto add = [&](const char* name, double unit, const char* after) {
    if (const double* value = find(name)) out += cat(out.empty() ? "" : ", ", std::lround(unit * *value), after);
  };
  add("utilization", 100, " %");
  add("power_w", 1, " W");
  add("temperature_c", 1, " C");
  add("sm_clock_mhz", 1, " MHz");
  if (const double* reasons = find("throttle_reasons")) {
    const uint64_t bad = static_cast<uint64_t>(*reasons) & kBadThrottling;
    if (bad != 0) out += cat(out.empty() ? "" : ", ", "throttled: ", throttle_text(bad));
  }
  return out;
}

}  // namespace hrm
