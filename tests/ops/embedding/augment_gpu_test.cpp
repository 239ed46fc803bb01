#include "hrm/ops/augment.h"

#include "ops/embedding/augment_cases.h"
#include "ops/gpu_testing.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

void expect_same_augmented(const AugmentData& got, const AugmentData& want, const std::string& what) {
  expect_same_bits(got.inputs.cpu(), want.inputs.cpu(), what + ", inputs");
  expect_same_bits(got.labels.cpu(), want.labels.cpu(), what + ", labels");
  expect_same_bits(got.identifiers.cpu(), want.identifiers.cpu(), what + ", identifiers");
}

TEST(AugmentGpu, GivesTheSamplesOfTheHost) {
  HRM_NEEDS_GPU();
  for (const AugmentCase& one : augment_cases()) {
    for (const int64_t rows : {1, 5, 700}) {
      AugmentData host = make_augment_data(one, rows, at::kCPU), device = make_augment_data(one, rows, at::kCUDA);
      run_augment(host, one.how);
      run_augment(device, one.how);
      const std::string what = cat("kind ", static_cast<int>(one.how.kind), ", ", one.cells, " cells, ", rows, " rows");
      expect_same_augmented(device, host, what);
      AugmentData through_host = make_augment_data(one, rows, at::kCUDA);
      const WithReference with_reference;
      run_augment(through_host, one.how);
      expect_same_augmented(through_host, host, what + ", reference");
    }
  }
}

TEST(AugmentGpu, NoRows) {
  HRM_NEEDS_GPU();
  const AugmentCase one = augment_cases().front();
  AugmentData data = make_augment_data(one, 0, at::kCUDA);
  run_augment(data, one.how);
  EXPECT_EQ(data.inputs.numel(), 0);
}

// Parts of a ring of rows that start anywhere.
TEST(AugmentGpu, MisalignedRows) {
  HRM_NEEDS_GPU();
  const AugmentCase one = augment_cases().front();
  AugmentData whole = make_augment_data(one, 20, at::kCUDA);
  run_augment(whole, one.how);
  AugmentData part = make_augment_data(one, 20, at::kCUDA);
  for (at::Tensor* tensor : {&part.inputs, &part.labels, &part.identifiers, &part.picks}) *tensor = tensor->slice(0, 7);
  run_augment(part, one.how);
  expect_same_bits(part.inputs, whole.inputs.slice(0, 7));
  expect_same_bits(part.labels, whole.labels.slice(0, 7));
}

TEST(AugmentGpu, InsideACapturedGraph) {
  HRM_NEEDS_GPU();
  for (const AugmentCase& one : augment_cases()) {
    AugmentData graphed = make_augment_data(one, 50, at::kCUDA);
    Captured captured([&] { run_augment(graphed, one.how); });
    AugmentData host = make_augment_data(one, 50, at::kCPU);
    for (int64_t step = 0; step < 3; ++step) {
      host.picks.select(1, 1).add_(50);
      graphed.picks.copy_(host.picks);
      captured.replay();
      run_augment(host, one.how);
      expect_same_augmented(graphed, host, cat(one.cells, " cells, step ", step));
    }
  }
}

}  // namespace
}  // namespace hrm::ops
