#include "hrm/runtime/loss_scaler.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace hrm {
namespace {

TEST(LossScaler, HalvesAtAnOverflowAndGrowsAfterFiniteSteps) {
  LossScaler scaler(1024, /*growth_interval=*/3, at::kCPU);
  const at::Tensor fine = at::zeros({}), overflow = at::ones({});
  const void* address = scaler.scale().const_data_ptr();
  const auto scale_after = [&](const at::Tensor& nonfinite) {
    scaler.update(nonfinite);
    return scaler.scale().item<double>();
  };
  EXPECT_EQ(scale_after(fine), 1024);
  EXPECT_EQ(scale_after(fine), 1024);
  EXPECT_EQ(scale_after(fine), 2048);
  EXPECT_EQ(scale_after(fine), 2048);
  EXPECT_EQ(scale_after(fine), 2048);
  EXPECT_EQ(scale_after(overflow), 1024);  // starts the count again
  EXPECT_EQ(scale_after(fine), 1024);
  EXPECT_EQ(scale_after(fine), 1024);
  EXPECT_EQ(scale_after(overflow), 512);
  EXPECT_EQ(scaler.scale().const_data_ptr(), address);
  const StateListing state = list_state(scaler);
  ASSERT_EQ(state.tensors.size(), 3u);
  EXPECT_EQ(state.tensors[2].name, "loss_scale.skipped");
  EXPECT_EQ(state.tensors[2].tensor.item<double>(), 2);
}

TEST(LossScaler, WithoutGrowth) {
  LossScaler scaler(8, /*growth_interval=*/0, at::kCPU);
  for (int i = 0; i < 5000; ++i) scaler.update(at::zeros({}));
  EXPECT_EQ(scaler.scale().item<double>(), 8);
}

TEST(LossScaler, GivesUpWhenNoScaleHelps) {
  LossScaler scaler(65536, 2000, at::kCPU);
  int steps = 0;
  while (scaler.hopeless().item<double>() == 0 && steps < 1000) {
    scaler.update(at::ones({}));
    ++steps;
  }
  EXPECT_EQ(steps, 37);  // 2^16 to below 2^-20
}

}  // namespace
}  // namespace hrm
