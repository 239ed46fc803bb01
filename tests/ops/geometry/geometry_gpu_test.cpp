#include "ops/geometry/geometry_cases.h"
#include "ops/gpu_testing.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

TEST(GeometryGpu, RotorAsGoodAsPlaneByPlane) {
  HRM_NEEDS_GPU();
  const WithoutTf32 full;
  expect_good_rotor(at::kCUDA);
  const WithReference plain;
  expect_good_rotor(at::kCUDA);
}

TEST(GeometryGpu, LiorStepAsGoodAsFloat64) {
  HRM_NEEDS_GPU();
  const WithoutTf32 full;
  expect_good_lior(at::kCUDA);
}

TEST(GeometryGpu, SameBitsEachTimeAndInAGraph) {
  HRM_NEEDS_GPU();
  for (const RotorSize size : rotor_sizes()) {
    const at::Tensor theta = normal({size.k}, 1, at::kFloat, at::kCUDA),
                     outer = normal({size.n, size.n}, 2, at::kFloat, at::kCUDA);
    const at::Tensor v = normal({300, size.n}, 3, at::kFloat, at::kCUDA), r = normal({300}, 4, at::kFloat, at::kCUDA);
    const auto run = [&]() -> std::vector<at::Tensor> {
      const LiorStep step = lior_step(v, outer, r, 1e-8);
      return {rotor_matrix(theta, size.n), rotor_angle_gradient(theta, outer), step.action, step.speed};
    };
    const std::string what = cat("n ", size.n, ", k ", size.k);
    expect_same_each_time(run, 20, what);
    std::vector<at::Tensor> got;
    Captured captured([&] { got = run(); });
    for (const uint64_t seed : {5, 6}) {
      theta.copy_(normal({size.k}, seed, at::kFloat));
      outer.copy_(normal({size.n, size.n}, seed, at::kFloat));
      captured.replay();
      const std::vector<at::Tensor> want = run();
      for (size_t i = 0; i < want.size(); ++i) expect_same_bits(got[i], want[i], cat(what, ", result ", i));
    }
  }
}

// A metric, its inverse and the closed statistics take no host read: they can be captured.
TEST(GeometryGpu, CompositionsInAGraph) {
  HRM_NEEDS_GPU();
  const WithoutTf32 full;
  const at::Tensor theta = normal({16}, 1, at::kFloat, at::kCUDA), g = normal({16}, 2, at::kFloat, at::kCUDA).exp();
  const at::Tensor v = normal({64, 16}, 3, at::kFloat, at::kCUDA), blocks = normal({8, 3}, 4, at::kFloat, at::kCUDA);
  const at::Tensor one = scalar(1, at::kCUDA);
  const auto run = [&]() -> std::vector<at::Tensor> {
    const SyncedMetric metric = metric_sync(theta, g), block = block_metric_sync(theta, blocks);
    const SpeedStatistics statistics = speed_statistics(v, one, g, theta, 1e-8);
    return {metric.metric, metric.inverse,   block.metric,      block.inverse,
            statistics.g,  statistics.theta, wrap_angles(theta)};
  };
  std::vector<at::Tensor> got;
  Captured captured([&] { got = run(); });
  theta.copy_(normal({16}, 9, at::kFloat));
  captured.replay();
  const std::vector<at::Tensor> want = run();
  for (size_t i = 0; i < want.size(); ++i) expect_same_bits(got[i], want[i], cat("result ", i));
}

}  // namespace
}  // namespace hrm::ops
