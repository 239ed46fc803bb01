// Answers that share their prompts on a GPU.

#include <ATen/Context.h>
#include <c10/cuda/CUDAFunctions.h>

#include "tasks/prefix_sharing_cases.h"

namespace hrm::tasks {
namespace {

TEST(SharedAnswersGpu, AsRowsThatShareNothing) {
  if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device";
  for (const bool joins : {false, true}) {
    test::expect_shared_as_rows(test::small_decoder_lm(at::kCUDA), at::kCUDA, joins);
    test::expect_shared_as_rows(test::small_decoder_lm(at::kCUDA, /*window=*/4), at::kCUDA, joins);
  }
}

}  // namespace
}  // namespace hrm::tasks
