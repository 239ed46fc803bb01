#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <limits>

#include "ops/geometry/geometry_cases.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

TEST(Geometry, RotorAsGoodAsPlaneByPlane) {
  expect_good_rotor(at::kCPU);
}

TEST(Geometry, LiorStepAsGoodAsFloat64) {
  expect_good_lior(at::kCPU);
}

at::Tensor angles(int64_t k) {
  return normal({k}, 7, at::kFloat).to(at::kDouble);
}

TEST(Geometry, RotorIsARotation) {
  for (const RotorSize size : rotor_sizes()) {
    const at::Tensor q = rotor_matrix(angles(size.k), size.n);
    EXPECT_LT(largest_difference(q.matmul(q.t()), at::eye(size.n, at::kDouble)), 1e-12) << size.n << " " << size.k;
  }
}

TEST(Geometry, RotorGradientByFiniteDifferences) {
  for (const RotorSize size : std::vector<RotorSize>{{2, 1}, {5, 7}, {8, 6}, {6, 11}}) {
    const at::Tensor theta = angles(size.k), weight = normal({size.n, size.n}, 8, at::kFloat).to(at::kDouble);
    const at::Tensor leaf = theta.clone().requires_grad_();
    (rotor_matrix(leaf, size.n) * weight).sum().backward();
    for (int64_t i = 0; i < size.k; ++i) {
      at::Tensor step = at::zeros_like(theta);
      step[i] = 1e-5;
      const double up = (rotor_matrix(theta + step, size.n) * weight).sum().item<double>();
      const double down = (rotor_matrix(theta - step, size.n) * weight).sum().item<double>();
      EXPECT_NEAR(leaf.grad()[i].item<double>(), (up - down) / 2e-5, 1e-8) << "n " << size.n << ", angle " << i;
    }
  }
}

TEST(Geometry, AngleGradientIsThatOfTheEnergy) {
  const at::Tensor v = normal({9, 8}, 1, at::kFloat).to(at::kDouble),
                   g = normal({8}, 2, at::kFloat).to(at::kDouble).exp();
  const at::Tensor r = normal({9}, 3, at::kFloat).to(at::kDouble).abs();
  const at::Tensor u = normal({8, 3}, 4, at::kFloat).to(at::kDouble),
                   w = normal({3}, 5, at::kFloat).to(at::kDouble).exp();
  const SpeedStatistics ours = speed_statistics(v, r, g, angles(11), 1e-3, u, w);
  const std::vector<at::Tensor> leaf{g.clone().requires_grad_(), angles(11).requires_grad_(),
                                     u.clone().requires_grad_(), w.clone().requires_grad_()};
  const at::Tensor x = v.matmul(rotor_matrix(leaf[1], 8).t());
  const at::Tensor q = (x * x * leaf[0]).sum(1) + (v.matmul(leaf[2]).square() * leaf[3]).sum(1);
  const at::Tensor energy = (r * (q + 1e-3).sqrt()).mean();
  EXPECT_NEAR(ours.energy.item<double>(), energy.item<double>(), 1e-13);
  const auto want = torch::autograd::grad({energy}, leaf);
  EXPECT_LT(largest_difference(ours.g, want[0]), 1e-13);
  EXPECT_LT(largest_difference(ours.theta, want[1]), 1e-13);
  EXPECT_LT(largest_difference(ours.vectors, want[2]), 1e-13);
  EXPECT_LT(largest_difference(ours.weights, want[3]), 1e-13);
  const SpeedStatistics diagonal = speed_statistics(v, at::scalar_tensor(2.0, at::kDouble), g, angles(11), 1e-3);
  EXPECT_FALSE(diagonal.vectors.defined());
}

TEST(Geometry, MetricsAndTheirInverses) {
  const at::Tensor g = normal({8}, 2, at::kFloat).to(at::kDouble).exp();
  const SyncedMetric plain = metric_sync(angles(6), g);
  const at::Tensor v = normal({5, 8}, 3, at::kFloat).to(at::kDouble);
  EXPECT_LT(largest_difference(plain.metric.matmul(plain.inverse), at::eye(8, at::kDouble)), 1e-12);
  EXPECT_LT(
      largest_difference(quadratic_form(v, plain.metric), quadratic_form(v.matmul(rotor_matrix(angles(6), 8).t()), g)),
      1e-12);
  const SyncedMetric block = block_metric_sync(angles(6), normal({4, 3}, 4, at::kFloat).to(at::kDouble));
  EXPECT_LT(largest_difference(block.metric.matmul(block.inverse), at::eye(8, at::kDouble)), 1e-12);
  EXPECT_LT(largest_difference(block.metric, block.metric.t()), 1e-13);
}

TEST(Geometry, AnglesWrapIntoTheHalfOpenInterval) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    const at::Tensor theta = at::tensor({0.0, M_PI, -M_PI, 3.5, -3.5, 100.0, -1e-20, -M_PI - 1e-20,
                                         -std::numeric_limits<double>::denorm_min()},
                                        at::kDouble)
                                 .to(dtype);
    const at::Tensor wrapped = wrap_angles(theta);
    EXPECT_TRUE(wrapped.lt(M_PI).all().item<bool>()) << wrapped;
    EXPECT_TRUE(wrapped.ge(-M_PI - 1e-6).all().item<bool>()) << wrapped;
    const at::Tensor turns = (theta.to(at::kDouble) - wrapped.to(at::kDouble)) / (2 * M_PI);
    EXPECT_LT(largest_difference(turns, turns.round()), dtype == at::kFloat ? 1e-5 : 1e-13);
  }
  EXPECT_EQ(wrap_angles(at::full({}, 3.0), 4.0).item<float>(), -1);
}

TEST(Geometry, IndefiniteMetricIsClamped) {
  const at::Tensor v = at::tensor({3.0F, 1.0F}).unsqueeze(0), metric = at::tensor({-1.0F, 1.0F}).diag();
  EXPECT_EQ(quadratic_form(v, metric).item<float>(), -8);
  const LiorStep step = lior_step(v, metric, scalar(2), 0.25);
  EXPECT_EQ(step.speed.item<float>(), 0.5);
  EXPECT_EQ(step.action.item<float>(), 1);
}

TEST(Geometry, AnyStrides) {
  const at::Tensor v = normal({8, 5}, 1, at::kFloat).t(), metric = normal({8, 8}, 2, at::kFloat).t();
  const at::Tensor r = normal({10}, 3, at::kFloat).slice(0, 0, 10, 2),
                   theta = normal({12}, 4, at::kFloat).slice(0, 0, 12, 2);
  // A library's product may sum in another order where strides differ.
  const at::Tensor action = lior_step(v.contiguous(), metric.contiguous(), r.contiguous(), 1e-8).action;
  EXPECT_LT(largest_difference(lior_step(v, metric, r, 1e-8).action, action), 1e-6);
  expect_same_bits(rotor_matrix(theta, 8), rotor_matrix(theta.contiguous(), 8));
  expect_same_bits(rotor_angle_gradient(theta, metric), rotor_angle_gradient(theta.contiguous(), metric.contiguous()));
}

TEST(Geometry, BadInputIsNamed) {
  expect_message(error_of([] { rotor_matrix(at::zeros({2, 3}), 4); }), {"hrm::rotor_matrix", "[2, 3]"});
  expect_message(error_of([] { rotor_matrix(at::zeros({2}), 1); }), {"hrm::rotor_matrix", "[2]", "n is 1"});
  expect_message(error_of([] { rotor_matrix(at::zeros({2}, at::kHalf), 4); }), {"hrm::rotor_matrix", "Half"});
  expect_message(error_of([] {
                   rotor_angle_gradient(at::zeros({2}), at::zeros({4, 3}));
                 }),
                 {"hrm::rotor_angle_gradient", "[4, 3]"});
  expect_message(error_of([] {
                   rotor_angle_gradient(at::zeros({2}), at::zeros({4, 4}, at::kDouble));
                 }),
                 {"hrm::rotor_angle_gradient", "Double"});
  expect_message(error_of([] {
                   quadratic_form(at::zeros({3, 4}), at::zeros({2, 4, 4}));
                 }),
                 {"hrm::quadratic_form", "[3, 4]", "[2, 4, 4]"});
  expect_message(error_of([] {
                   lior_step(at::zeros({3, 4}), at::zeros({5}), scalar(1), 1e-8);
                 }),
                 {"hrm::lior_step", "[3, 4]", "[5]"});
  expect_message(error_of([] {
                   lior_step(at::zeros({3, 4}), at::zeros({4}), at::zeros({2}), 1e-8);
                 }),
                 {"hrm::lior_step", "[3, 4]", "[2]"});
  expect_message(error_of([] {
                   resilience_from_curvature(at::zeros({2, 3, 3, 3, 2}), at::zeros({3, 3}), 1e-8);
                 }),
                 {"hrm::resilience_from_curvature", "[2, 3, 3, 3, 2]", "[3, 3]"});
}

}  // namespace
}  // namespace hrm::ops
