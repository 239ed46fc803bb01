// State that lives on the GPU is saved from there and loaded back in place.
#include <ATen/cuda/CUDAContext.h>
#include <gtest/gtest.h>

#include "sample_state.h"
#include "support/state_check.h"
#include "support/temp_dir.h"

namespace hrm::checkpoint {
namespace {

void to_gpu(SampleState& state) {
  const auto move = [](at::Tensor& tensor) {
    const bool grad = tensor.requires_grad();
    tensor = tensor.detach().cuda().set_requires_grad(grad);
  };
  for (at::Tensor* tensor : {&state.weight, &state.bias, &state.table, &state.half, &state.average, &state.moment,
                             &state.scalar, &state.empty, &state.odd}) {
    move(*tensor);
  }
  for (at::Tensor& tensor : state.types) move(tensor);
}

TEST(Device, RoundTripOnTheGpu) {
  if (!at::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  const test::TempDir run;
  SampleState state(5), fresh(6), on_cpu(7);
  to_gpu(state);
  to_gpu(fresh);
  const void* memory = fresh.weight.data_ptr();
  const auto dir = save_checkpoint(run.path(), state, sample_meta(1), 1);
  load_checkpoint(dir, fresh);
  EXPECT_EQ(test::first_state_difference(state, fresh), "");
  EXPECT_TRUE(fresh.weight.is_cuda());
  EXPECT_EQ(fresh.weight.data_ptr(), memory);
  // The device is not part of a checkpoint.
  load_checkpoint(dir, on_cpu);
  EXPECT_EQ(digest_state(on_cpu), digest_state(state));
}

}  // namespace
}  // namespace hrm::checkpoint
