#include <ATen/ATen.h>

#include "data/vectors/vector_stream_cases.h"

namespace hrm::data {
namespace {

TEST(VectorStreamGpu, GathersOnTheDevice) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no CUDA device";
  expect_gathers(at::Device(at::kCUDA, 0));
}

}  // namespace
}  // namespace hrm::data
