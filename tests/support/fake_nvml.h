#pragma once
// Sets the answers of fake_nvml.c, which the test's process has loaded.

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <string>

#include "support/paths.h"

namespace hrm::test {

struct FakeNvml {  // struct fake of fake_nvml.c
  int refuse_init, unsupported, divided, hang_s;
  unsigned long long reasons;
  unsigned temperature_c, power_mw, clock_mhz;
  unsigned long long link_kib;
  int samples, inits, shutdowns;
};

inline std::string fake_nvml_library() {
  return binary_dir() + "/tests/fake_nvml.so";
}

// As after loading, but for a loaded GPU in good order.
inline volatile FakeNvml& fake_nvml() {
  void* library = dlopen(fake_nvml_library().c_str(), RTLD_NOW);
  auto* fake = library == nullptr ? nullptr : static_cast<FakeNvml*>(dlsym(library, "fake_nvml"));
  if (fake == nullptr) ADD_FAILURE() << "no " << fake_nvml_library();
  *fake = {};
  fake->reasons = 0x4;
  fake->temperature_c = 71;
  fake->power_mw = 650000;
  fake->clock_mhz = 1755;
  return *fake;
}

}  // namespace hrm::test
