#pragma once
// The part of NVIDIA's management library (NVML) that we call. It comes with the driver and is opened at run time, so
// the program starts without it. Declared here, from NVML's documentation: no header of CUDA's toolkit is needed.

#include <string>

namespace hrm::nvml {

using Device = void*;  // nvmlDevice_t
using Result = int;    // nvmlReturn_t
inline constexpr Result kSuccess = 0;

inline constexpr int kClockSm = 1, kClockMemory = 2;    // nvmlClockType_t
inline constexpr int kTemperatureGpu = 0;               // nvmlTemperatureSensors_t
inline constexpr int kPcieSent = 0, kPcieReceived = 1;  // nvmlPcieUtilCounter_t
// Fields of nvmlDeviceGetFieldValues: payload that NVLink has sent and received, in KiB.
inline constexpr unsigned kNvlinkSent = 138, kNvlinkReceived = 139;
inline constexpr unsigned kAllLinks = ~0U;  // as their scope

struct Utilization {  // nvmlUtilization_t, percent
  unsigned gpu, memory;
};
struct Memory {  // nvmlMemory_t, bytes
  unsigned long long total, free, used;
};
struct FieldValue {  // nvmlFieldValue_t
  unsigned field, scope;
  long long timestamp_us, latency_us;
  int type;  // nvmlValueType_t: 0 double, 1 unsigned, 2 unsigned long, 3 unsigned long long, 4 long long
  Result result;
  union {
    double as_double;
    unsigned as_unsigned;
    unsigned long as_unsigned_long;
    unsigned long long as_unsigned_long_long;
    long long as_long_long;
  } value;
};
static_assert(sizeof(FieldValue) == 40);

// Null where the library lacks the function: drivers before and after have others.
struct Library {
  Result (*init)() = nullptr;
  Result (*shutdown)() = nullptr;
  Result (*handle_by_pci_bus_id)(const char*, Device*) = nullptr;
  Result (*handle_by_uuid)(const char*, Device*) = nullptr;
  Result (*mig_mode)(Device, unsigned* current, unsigned* pending) = nullptr;
  Result (*utilization)(Device, Utilization*) = nullptr;
  Result (*power_mw)(Device, unsigned*) = nullptr;
  Result (*power_limit_mw)(Device, unsigned*) = nullptr;
  Result (*clock_mhz)(Device, int clock, unsigned*) = nullptr;
  Result (*max_clock_mhz)(Device, int clock, unsigned*) = nullptr;
  Result (*throttle_reasons)(Device, unsigned long long*) = nullptr;
  Result (*temperature_c)(Device, int sensor, unsigned*) = nullptr;
  Result (*memory)(Device, Memory*) = nullptr;
  Result (*pcie_kb_per_s)(Device, int counter, unsigned*) = nullptr;
  Result (*field_values)(Device, int count, FieldValue*) = nullptr;
};

// Opens the library and initialises it. False, with the reason, where there is none, it does not start, or it lacks
// what all else needs. A library stays loaded until the process ends.
bool open(const std::string& name, Library& library, std::string& why_not);

}  // namespace hrm::nvml
