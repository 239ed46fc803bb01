// The layered energy on a GPU against the CPU, and a training step of it in a graph.

#include "hrm/models/layered_energy.h"
#include "hrm/runtime/captured_step.h"
#include "models/layered_energy_cases.h"
#include "ops/gpu_testing.h"

namespace hrm::models {
namespace {

const at::Device kEnergyGpu(at::kCUDA, 0);
const LayeredEnergyOptions kSizes{.inputs = 20, .hidden = {48, 33}, .classes = 7};

TEST(LayeredEnergyGpu, MatchesTheCpu) {
  HRM_NEEDS_GPU();
  const ops::testing::WithoutTf32 full;
  const auto cpu = small_energy(kSizes, at::kFloat), gpu = small_energy(kSizes, at::kFloat, kEnergyGpu);
  const LabelledRows rows = clustered_rows(65, 20, 7, 1, at::kFloat);
  const at::Tensor inputs = rows.inputs.to(kEnergyGpu), labels = rows.labels.to(kEnergyGpu);
  EXPECT_TRUE(at::allclose(gpu->logits(inputs).cpu(), cpu->logits(rows.inputs), 1e-4, 1e-5));
  for (const bool one_sided : {false, true}) {
    const Contrast got = gpu->contrast(inputs, labels, {.one_sided = one_sided});
    const Contrast want = cpu->contrast(rows.inputs, rows.labels, {.one_sided = one_sided});
    EXPECT_NEAR(got.loss.item<float>(), want.loss.item<float>(), 1e-5);
    for (size_t i = 0; i < want.gradients.size(); ++i) {
      EXPECT_GE(cosine(got.gradients[i].cpu(), want.gradients[i]), 0.9999) << i;
    }
  }
}

// Several steps of plain gradient descent, captured and eager: equal bit for bit.
TEST(LayeredEnergyGpu, CapturedStepsEqualEagerOnes) {
  HRM_NEEDS_GPU();
  const LabelledRows first = clustered_rows(64, 20, 7, 1, at::kFloat);
  const auto train = [&](bool capture) {
    const auto model = small_energy(kSizes, at::kFloat, kEnergyGpu);
    const at::Tensor inputs = first.inputs.to(kEnergyGpu), labels = first.labels.to(kEnergyGpu);
    const at::Tensor loss = at::zeros({}, inputs.options());
    const auto work = [&] {
      const at::NoGradGuard no_grad;
      const Contrast contrast = model->contrast(inputs, labels, {});
      loss.copy_(contrast.loss);
      std::vector<at::Tensor> parameters = model->parameters();
      for (size_t i = 0; i < parameters.size(); ++i) parameters[i].sub_(contrast.gradients[i], 0.5);
      model->project_();
    };
    CapturedStep step({.name = "layered energy", .device = kEnergyGpu, .enabled = capture});
    std::vector<float> losses;
    for (uint64_t i = 0; i < 12; ++i) {
      const LabelledRows rows = clustered_rows(64, 20, 7, i, at::kFloat);
      inputs.copy_(rows.inputs);
      labels.copy_(rows.labels);
      step.run({64}, {inputs, labels}, work);
      losses.push_back(loss.item<float>());
    }
    EXPECT_EQ(step.captured({64}), capture) << step.reason();
    return std::pair(losses, model->parameters());
  };
  const auto captured = train(true), eager = train(false);
  EXPECT_EQ(captured.first, eager.first);
  for (size_t i = 0; i < eager.second.size(); ++i) EXPECT_TRUE(at::equal(captured.second[i], eager.second[i])) << i;
}

}  // namespace
}  // namespace hrm::models
