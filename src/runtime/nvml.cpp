#include "nvml.h"

#include <dlfcn.h>

#include "hrm/base/error.h"

namespace hrm::nvml {
namespace {

// The first of the names that the library has.
template <class Function>
void find(void* handle, Function& function, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    function = reinterpret_cast<Function>(dlsym(handle, name));
    if (function != nullptr) return;
  }
}

}  // namespace

bool open(const std::string& name, Library& library, std::string& why_not) {
  void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* reason = dlerror();
    why_not = reason != nullptr ? reason : cat("cannot open ", name);
    return false;
  }
  find(handle, library.init, {"nvmlInit_v2", "nvmlInit"});
  find(handle, library.shutdown, {"nvmlShutdown"});
  find(handle, library.handle_by_pci_bus_id, {"nvmlDeviceGetHandleByPciBusId_v2", "nvmlDeviceGetHandleByPciBusId"});
  find(handle, library.handle_by_uuid, {"nvmlDeviceGetHandleByUUID"});
  find(handle, library.mig_mode, {"nvmlDeviceGetMigMode"});
  find(handle, library.utilization, {"nvmlDeviceGetUtilizationRates"});
  find(handle, library.power_mw, {"nvmlDeviceGetPowerUsage"});
  find(handle, library.power_limit_mw, {"nvmlDeviceGetEnforcedPowerLimit"});
  find(handle, library.clock_mhz, {"nvmlDeviceGetClockInfo"});
  find(handle, library.max_clock_mhz, {"nvmlDeviceGetMaxClockInfo"});
  find(handle, library.throttle_reasons,
       {"nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"});
  find(handle, library.temperature_c, {"nvmlDeviceGetTemperature"});
  find(handle, library.memory, {"nvmlDeviceGetMemoryInfo"});
  find(handle, library.pcie_kb_per_s, {"nvmlDeviceGetPcieThroughput"});
  find(handle, library.field_values, {"nvmlDeviceGetFieldValues"});
  if (library.init == nullptr || library.shutdown == nullptr || library.handle_by_pci_bus_id == nullptr) {
    why_not = cat(name, " is no NVML");
    return false;
  }
  const Result result = library.init();
  if (result != kSuccess) why_not = cat(name, " does not start (NVML error ", result, ")");
  return result == kSuccess;
}

}  // namespace hrm::nvml
