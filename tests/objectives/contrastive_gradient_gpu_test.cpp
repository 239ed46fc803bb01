// Contrastive gradients of the GPU's kernels beside float64 on the CPU.
#include <c10/cuda/CUDAFunctions.h>

#include "hrm/base/error.h"
#include "objectives/contrastive_gradient_cases.h"

namespace hrm::objectives {
namespace {

using namespace test;  // NOLINT

#define HRM_NEEDS_GPU() \
  if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device"

// Sizes of the kernels' padding: none, and all of it. At the start and after training.
TEST(ContrastiveGradientsGpu, PointWhereBackpropDoes) {
  HRM_NEEDS_GPU();
  GeometricMemoryOptions padded = without_beta_cap(small_memory()), whole = padded;
  whole.coords = 16;
  whole.width = 32;
  whole.slots = 128;
  for (const GeometricMemoryOptions& options : {padded, whole}) {
    const auto exact_memory = make_memory(options, at::kDouble);
    for (const int64_t steps : {0, 100}) {
      train_memory(*exact_memory, steps);
      const LabelledBatch batch(options, 64);
      const models::Gradients exact = backprop_gradients(*exact_memory, batch);
      const auto memory = copy_of(*exact_memory, at::kCUDA, at::kFloat);
      const LabelledBatch rows = batch.to(at::kCUDA, at::kFloat);
      const auto gradients = [&](bool half) {
        return contrastive_gradients(*memory, window_of(*memory, 0.1, half), rows.inputs, rows.labels, {}).gradients;
      };
      const models::Gradients ours = gradients(/*half=*/false), half = gradients(/*half=*/true);
      const std::string what = cat(", ", options.slots, " slots, after ", steps, " steps");
      for (const auto& [name, value] : cosines(*memory, ours, exact)) EXPECT_GE(value, 0.999) << name << what;
      for (const auto& [name, value] : cosines(*memory, half, ours)) EXPECT_GE(value, 0.9999) << name << what;
    }
  }
}

}  // namespace
}  // namespace hrm::objectives
