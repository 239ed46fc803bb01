// Stands in for libnvidia-ml.so.1: one GPU at 0000:3B:00.0 whose answers a test sets. It lacks some functions, as older
// drivers do.
#include <string.h>
#include <unistd.h>

struct fake {
  int refuse_init;        // init fails with this error
  int unsupported;        // all questions but the throttle reasons fail
  int divided;            // MIG
  int hang_s;             // each sample takes this long
  unsigned long long reasons;
  unsigned temperature_c, power_mw, clock_mhz;
  unsigned long long link_kib;  // added to the NVLink counters at each question
  int samples, inits, shutdowns;
};
struct fake fake_nvml;
static int whole, instance;  // their addresses are the handles
static unsigned long long link_kib;

enum { kSuccess = 0, kUnsupported = 3, kUnknown = 6 };

static int answer(const void* device, unsigned* out, unsigned value) {
  if (device != &whole || fake_nvml.unsupported) return kUnsupported;
  *out = value;
  return kSuccess;
}

int nvmlInit_v2(void) {
  ++fake_nvml.inits;
  return fake_nvml.refuse_init;
}
int nvmlShutdown(void) {
  ++fake_nvml.shutdowns;
  return kSuccess;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char* bus, void** device) {
  *device = &whole;
  return strcmp(bus, "0000:3B:00.0") == 0 ? kSuccess : kUnknown;
}
int nvmlDeviceGetHandleByUUID(const char* uuid, void** device) {
  *device = &instance;
  return strcmp(uuid, "MIG-12345678-1234") == 0 ? kSuccess : kUnknown;
}
int nvmlDeviceGetMigMode(void* device, unsigned* now, unsigned* later) {
  *now = *later = (unsigned)fake_nvml.divided;
  return device == &whole ? kSuccess : kUnsupported;
}
int nvmlDeviceGetUtilizationRates(void* device, unsigned* shares) {
  shares[1] = 40;
  return answer(device, shares, 98);
}
int nvmlDeviceGetPowerUsage(void* device, unsigned* out) {
  ++fake_nvml.samples;
  if (fake_nvml.hang_s) sleep((unsigned)fake_nvml.hang_s);
  return answer(device, out, fake_nvml.power_mw);
}
int nvmlDeviceGetEnforcedPowerLimit(void* device, unsigned* out) { return answer(device, out, 700000); }
int nvmlDeviceGetClockInfo(void* device, int clock, unsigned* out) {
  return answer(device, out, clock == 1 ? fake_nvml.clock_mhz : 2619);
}
int nvmlDeviceGetMaxClockInfo(void* device, int clock, unsigned* out) { return answer(device, out, clock == 1 ? 1980 : 2619); }
int nvmlDeviceGetCurrentClocksThrottleReasons(void* device, unsigned long long* out) {
  *out = fake_nvml.reasons;
  return device == &whole ? kSuccess : kUnsupported;
}
int nvmlDeviceGetTemperature(void* device, int sensor, unsigned* out) {
  return answer(device, out, sensor == 0 ? fake_nvml.temperature_c : 0);
}
int nvmlDeviceGetMemoryInfo(void* device, unsigned long long* out) {
  out[0] = 80ULL << 30;
  out[1] = 70ULL << 30;
  out[2] = device == &instance ? 1ULL << 30 : 10ULL << 30;
  return fake_nvml.unsupported ? kUnsupported : kSuccess;
}
int nvmlDeviceGetPcieThroughput(void* device, int counter, unsigned* out) { return answer(device, out, counter == 0 ? 3 : 5); }

struct field {
  unsigned field, scope;
  long long timestamp, latency;
  int type, result;
  unsigned long long value;
};
int nvmlDeviceGetFieldValues(void* device, int count, struct field* fields) {
  if (device != &whole || fake_nvml.unsupported) return kUnsupported;
  link_kib += fake_nvml.link_kib;
  for (int i = 0; i < count; ++i) {
    const int known = fields[i].scope == ~0U && (fields[i].field == 138 || fields[i].field == 139);
    fields[i].type = 3;
    fields[i].result = known ? kSuccess : kUnsupported;
    fields[i].value = fields[i].field == 138 ? link_kib : 2 * link_kib;
  }
  return kSuccess;
}
