// The cases of parity_test.cpp, from the same folder, on a GPU in full float32. The tolerances are those of the CPU.

#include "ops/gpu_testing.h"
#include "parity/cases.h"

namespace hrm::parity {
namespace {

class OnGpu {
 public:
  OnGpu() { device() = at::Device(at::kCUDA, 0); }
  ~OnGpu() { device() = at::kCPU; }

 private:
  ops::testing::WithoutTf32 full_;
};

// gtest fails where the folder holds no case.
class ParityGpu : public testing::TestWithParam<std::string> {};

TEST_P(ParityGpu, Case) {
  HRM_NEEDS_GPU();
  const OnGpu on_gpu;
  check_case(GetParam());
}

INSTANTIATE_TEST_SUITE_P(Fixtures, ParityGpu, testing::ValuesIn(case_names()),
                         [](const auto& info) { return test_name(info.param); });

}  // namespace
}  // namespace hrm::parity
