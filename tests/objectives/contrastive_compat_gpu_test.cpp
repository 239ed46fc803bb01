#include "objectives/compat_cases.h"
#include "ops/gpu_testing.h"

namespace hrm::objectives {
namespace {

using namespace compat_test;  // NOLINT
using ops::testing::Captured, ops::testing::WithoutTf32;

CompatSizes gpu_sizes() {
  return {.axes = 8, .angles = 6, .width = 16, .slots = 8, .field_x = 4, .field_y = 5, .field_dim = 4};
}

TEST(ContrastiveCompatGpu, EqualsTheOriginalStepByStep) {
  HRM_NEEDS_GPU();
  CompatSettings settings;
  settings.steps = 12;
  expect_original(settings, gpu_sizes(), at::kCUDA, 3, 4, "main");
  settings.commit = CompatCommit::guide;
  expect_original(settings, gpu_sizes(), at::kCUDA, 9, 3, "guide");
}

// Two windows of one start: replayed and eager, all of the state bit for bit, while the ring wraps.
TEST(ContrastiveCompatGpu, CapturedEqualsEager) {
  HRM_NEEDS_GPU();
  CompatSettings settings;
  settings.steps = 8;
  const CompatProblem eager = compat_problem(settings, gpu_sizes(), at::kCUDA);
  const CompatProblem graph = compat_problem(settings, gpu_sizes(), at::kCUDA);
  const at::Tensor lr = at::full({}, 0.01, at::device(at::kCUDA).dtype(at::kFloat));
  const auto tensors = [](const CompatState& s) {
    return std::vector<at::Tensor>{s.field,     s.g,           s.theta,   s.bank_coord, s.bank_state,
                                   s.bank_next, s.bank_filled, s.history, s.window};
  };
  CompatWindow one(settings, eager.state), other(settings, graph.state);
  std::vector<at::Tensor> start;
  for (const at::Tensor& t : tensors(graph.state)) start.push_back(t.clone());
  at::Tensor dL;
  Captured captured([&] { dL = other.run(other.encode(graph.embedding, graph.ids, graph.mask), lr).update.dL; });
  for (size_t i = 0; i < start.size(); ++i) tensors(graph.state)[i].copy_(start[i]);  // the warm-up has moved it
  for (int window = 0; window < 6; ++window) {
    graph.ids.copy_(at::remainder(eager.ids + window, 20));
    captured.replay();
    const CompatResult want = one.run(one.encode(eager.embedding, graph.ids, eager.mask), lr);
    EXPECT_TRUE(at::equal(dL, want.update.dL)) << window;
    const std::vector<at::Tensor> got = tensors(graph.state), expected = tensors(eager.state);
    for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(at::equal(got[i], expected[i])) << window << ", tensor " << i;
  }
}

TEST(ContrastiveCompatGpu, HalfPrecisionBank) {
  HRM_NEEDS_GPU();
  CompatProblem p = compat_problem({}, gpu_sizes(), at::kCUDA);
  CompatWindow full(p.settings, copy_state(p.state, at::kFloat));
  p.state.bank_state = p.state.bank_state.to(at::kHalf);
  CompatWindow half(p.settings, p.state);
  const at::Tensor lr = at::full({}, 0.01);
  for (int window = 0; window < 2; ++window) {
    const CompatResult want =
        full.run(full.encode(p.embedding.to(at::kCPU), p.ids.to(at::kCPU), p.mask.to(at::kCPU)), lr);
    const CompatResult got = half.run(half.encode(p.embedding, p.ids, p.mask), lr.to(at::kCUDA));
    expect_near(got.free.retrieved, want.free.retrieved, 2e-3, "y");
    expect_near(got.update.dL, want.update.dL, 1e-5, "dL");
  }
}

}  // namespace
}  // namespace hrm::objectives
