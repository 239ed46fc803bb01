// After an error of the device (a wrong address, a failed assertion of a kernel) every later call in the process fails.
// The test that caused it ends the program, so that no other one is blamed; scripts/check_gpu runs the rest anew.
#include <cstdio>
#include <cstdlib>

#include "ops/gpu_testing.h"

namespace hrm::ops {
namespace {

class EndOnDeviceErrors : public ::testing::EmptyTestEventListener {
  void OnTestEnd(const ::testing::TestInfo& test) override {
    if (test.result()->Skipped()) return;
    try {
      if (c10::cuda::device_count() > 0) c10::cuda::device_synchronize();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s.%s left the device with an error: %s\n", test.test_suite_name(), test.name(),
                   error.what());
      std::_Exit(EXIT_FAILURE);
    }
  }
};

[[maybe_unused]] const bool kListens = [] {
  ::testing::UnitTest::GetInstance()->listeners().Append(new EndOnDeviceErrors);
  return true;
}();

}  // namespace
}  // namespace hrm::ops
