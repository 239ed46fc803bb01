#include "hrm/ops/complex_field.h"

#include <ATen/Parallel.h>

#include "ops/field/complex_field_cases.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

// Axes of one and two cells too: both neighbours are one cell there, or the cell itself. The last ones are wider than a
// part of the loop.
const std::vector<std::vector<int64_t>> kSizes{{1, 1, 2},       {1, 1, 7, 2}, {1, 4, 3, 2},  {2, 2, 2},    {2, 3, 5, 2},
                                               {5, 4, 2, 3, 2}, {8, 8, 4, 2}, {2, 3, 32, 2}, {3, 5, 71, 2}};

TEST(ComplexField, VerletIsThatOfTheOracle) {
  for (const auto& sizes : kSizes) {
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
      for (const int64_t steps : {1, 20}) expect_verlet(at::kCPU, dtype, sizes, steps);
    }
  }
}

TEST(ComplexField, DissipativeIsThatOfTheOracle) {
  for (const auto& sizes : kSizes) {
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
      for (const int64_t steps : {1, 20}) expect_dissipative(at::kCPU, dtype, sizes, steps);
    }
  }
}

TEST(ComplexField, CollapseIsThatOfTheOracle) {
  expect_collapse(at::kCPU, at::kDouble);
  expect_collapse(at::kCPU, at::kFloat);
}

TEST(ComplexField, EnergiesAreThoseOfTheOracle) {
  for (const auto& sizes : kSizes) {
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) expect_energies(at::kCPU, dtype, sizes);
  }
}

TEST(ComplexField, ManyStepsAreManyCalls) {
  for (const auto& sizes : {std::vector<int64_t>{8, 8, 5, 2}, std::vector<int64_t>{3, 5, 71, 2}}) {
    expect_steps_add_up(at::kCPU, at::kFloat, sizes);
  }
  const WithReference with_reference;
  expect_steps_add_up(at::kCPU, at::kFloat, {3, 5, 7, 2});
}

TEST(ComplexField, SkipLeavesEverything) {
  expect_skip(at::kCPU);
  const WithReference with_reference;
  expect_skip(at::kCPU);
}

TEST(ComplexField, EnergyIsKept) {
  expect_energy_is_kept(at::kCPU, at::kDouble, 0.005);
  expect_energy_is_kept(at::kCPU, at::kFloat, 0.005);
  expect_energy_is_kept(at::kCPU, at::kFloat, 0.05);
}

TEST(ComplexField, SameBitsForAnyNumberOfThreads) {
  const std::vector<int64_t> sizes{8, 8, 16, 16, 2};
  const at::Tensor rest = normal(sizes, 2, at::kFloat);
  const auto run = [&](int threads) {
    const int before = at::get_num_threads();
    at::set_num_threads(threads);
    const at::Tensor field = normal(sizes, 1, at::kFloat), momentum = at::zeros_like(field);
    complex_field_verlet_(field, momentum, rest, {}, {}, 64, {.potential = FieldPotential::gaussian_well});
    const at::Tensor turned = normal(sizes, 3, at::kFloat), history = count(0, at::kCPU);
    complex_field_dissipative_(turned, history, rest, {}, {}, {}, 64, {});
    at::set_num_threads(before);
    return at::stack({field, momentum, turned});
  };
  const at::Tensor one = run(1);
  for (const int threads : {2, 3, 8}) expect_same_bits(run(threads), one, cat(threads, " threads"));
}

TEST(ComplexField, BackwardStepsLeadBack) {
  expect_reversible(at::kCPU, at::kDouble, 1e-12);
  expect_reversible(at::kCPU, at::kFloat, 1e-4);
}

TEST(ComplexField, NoValuesAndNoSteps) {
  expect_nothing_in_no_values(at::kCPU);
  const WithReference with_reference;
  expect_nothing_in_no_values(at::kCPU);
}

// The curvature at the equilibrium is the stiffness, and the well is bounded by it.
TEST(ComplexField, GaussianWell) {
  const at::Tensor rest = normal({1, 1, 3, 2}, 1, at::kDouble), none = at::zeros_like(rest);
  const auto potential = [&](double distance, FieldPotential kind) {
    const at::Tensor field = rest.clone();
    field.select(-1, 0) += distance;
    return complex_field_energies(field, none, rest, {.stiffness = 0.7, .potential = kind})[1].item<double>();
  };
  EXPECT_NEAR(potential(1e-3, FieldPotential::gaussian_well) / potential(1e-3, FieldPotential::harmonic), 1, 1e-6);
  EXPECT_NEAR(potential(10, FieldPotential::gaussian_well), 3 * 0.7, 1e-12);
}

TEST(ComplexField, HasNoDerivative) {
  const at::Tensor field = normal({2, 3, 2}, 1, at::kFloat).requires_grad_();
  const at::Tensor energies = complex_field_energies(field, at::zeros({2, 3, 2}), at::zeros({2, 3, 2}), {});
  expect_message(error_of([&] { energies.sum().backward(); }), {"complex_field_energies", "not implemented"});
}

TEST(ComplexField, BadInputOfVerletIsNamed) {
  const at::Tensor good = at::zeros({3, 4, 5, 2});
  const auto other = [&] { return good.clone(); };
  const auto message = [&](const at::Tensor& field, const at::Tensor& momentum, const at::Tensor& rest,
                           const std::optional<at::Tensor>& nudge, const std::optional<at::Tensor>& skip, int64_t steps,
                           const FieldVerlet& settings) {
    return error_of([&] { complex_field_verlet_(field, momentum, rest, nudge, skip, steps, settings); });
  };
  const std::string op = "hrm::complex_field_verlet_";
  ASSERT_EQ(message(good, other(), other(), other(), scalar(0), 1, {}), "");
  const auto with_field = [&](const at::Tensor& field) { return message(field, other(), other(), {}, {}, 1, {}); };
  expect_message(with_field(at::zeros({3, 2})), {op, "[Nx, Ny, ..., 2]", "[3, 2]"});
  expect_message(with_field(at::zeros({3, 4, 3})), {op, "[3, 4, 3]"});
  expect_message(with_field(at::zeros({0, 4, 2})), {op, "[0, 4, 2]"});
  expect_message(with_field(good.to(at::kBFloat16)), {op, "BFloat16"});
  expect_message(with_field(at::zeros({4, 3, 5, 2}).transpose(0, 1)), {op, "contiguous", "[3, 4, 5, 2]"});
  expect_message(message(good, at::zeros({3, 4, 4, 2}), other(), {}, {}, 1, {}), {op, "momentum", "[3, 4, 4, 2]"});
  expect_message(message(good, other(), other().to(at::kDouble), {}, {}, 1, {}), {op, "equilibrium", "Double"});
  expect_message(message(good, other(), other(), at::zeros({3, 4, 2}), {}, 1, {}), {op, "nudge", "[3, 4, 2]"});
  expect_message(message(good, other(), other(), {}, at::zeros({1}), 1, {}), {op, "skip", "0-dim", "[1]"});
  expect_message(message(good, other(), other(), {}, {}, -1, {}), {op, "steps", "-1"});
  expect_message(message(good, other(), other(), {}, {}, 1, {.dt = NAN}), {op, "dt", "nan"});
  expect_message(message(good, other(), other(), {}, {}, 1, {.mass = 0}), {op, "mass", "0"});
  expect_message(message(good, other(), other(), {}, {}, 1, {.stiffness = -1}), {op, "stiffness", "-1"});
  expect_message(message(good, other(), other(), {}, {}, 1, {.potential = static_cast<FieldPotential>(3)}),
                 {op, "potential", "gaussian_well", "3"});
  expect_message(message(good, good, other(), {}, {}, 1, {}), {op, "momentum", "overlaps field"});
  expect_message(message(good, other(), good, {}, {}, 1, {}), {op, "equilibrium", "overlaps field"});
  const at::Tensor momentum = other();
  expect_message(message(good, momentum, other(), momentum, {}, 1, {}), {op, "nudge", "overlaps momentum"});
}

TEST(ComplexField, BadInputOfDissipativeIsNamed) {
  const at::Tensor good = at::zeros({3, 4, 5, 2}), history = count(0, at::kCPU);
  const auto message = [&](const at::Tensor& past, const std::optional<at::Tensor>& source,
                           const std::optional<at::Tensor>& previous, const std::optional<at::Tensor>& evidence,
                           int64_t steps, const FieldDissipative& settings) {
    return error_of([&] { complex_field_dissipative_(good, past, source, previous, evidence, {}, steps, settings); });
  };
  const std::string op = "hrm::complex_field_dissipative_";
  const at::Tensor other = good.clone(), ones = at::ones_like(good);
  ASSERT_EQ(message(history, other, ones, other, 1, {}), "");
  expect_message(message(scalar(0), {}, {}, {}, 1, {}), {op, "history", "Long", "Float"});
  expect_message(message(history, at::zeros({3, 4, 2}), {}, {}, 1, {}), {op, "source", "[3, 4, 2]"});
  expect_message(message(history, good, {}, {}, 1, {}), {op, "source", "overlaps field"});
  expect_message(message(history, {}, other, {}, 1, {}), {op, "previous", "evidence", "together"});
  expect_message(message(history, {}, {}, other, 1, {}), {op, "evidence without"});
  expect_message(message(history, {}, other, ones, 2, {}), {op, "steps must be at most 1", "2"});
  expect_message(message(history, {}, {}, {}, -1, {}), {op, "steps", "-1"});
  expect_message(message(history, {}, {}, {}, 1, {.hbar = 0}), {op, "hbar"});
  expect_message(message(history, {}, {}, {}, 1, {.evidence_width = 0}), {op, "evidence_width", "0"});
  expect_message(message(history, {}, {}, {}, 1, {.history_capacity = -1}), {op, "history_capacity", "-1"});
  const auto traced = [&](const std::optional<at::Tensor>& skip, const at::Tensor& magnitudes) {
    return error_of([&] { complex_field_dissipative_(good, history, {}, {}, {}, skip, 3, {}, magnitudes); });
  };
  ASSERT_EQ(traced({}, at::zeros({3})), "");
  expect_message(traced({}, at::zeros({2})), {op, "magnitudes", "(3)", "[2]"});
  expect_message(traced(scalar(0), at::zeros({3})), {op, "magnitudes", "and a skip"});
}

TEST(ComplexField, BadInputOfEnergiesIsNamed) {
  const at::Tensor good = at::zeros({3, 4, 5, 2});
  const std::string op = "hrm::complex_field_energies";
  ASSERT_EQ(error_of([&] { complex_field_energies(good, good, good, {}); }), "");
  expect_message(error_of([&] { complex_field_energies(good[0][0], good, good, {}); }), {op, "[5, 2]"});
  expect_message(error_of([&] { complex_field_energies(good, good[0], good, {}); }), {op, "momentum", "[4, 5, 2]"});
  expect_message(error_of([&] { complex_field_energies(good, good, good, {.mass = -1}); }), {op, "mass", "-1"});
}

}  // namespace
}  // namespace hrm::ops
