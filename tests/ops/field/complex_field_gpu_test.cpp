#include "hrm/ops/complex_field.h"

#include "ops/field/complex_field_cases.h"
#include "ops/gpu_testing.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

// Sizes on both sides of every choice of the kernel. A block has one or several components. A thread has 1, 4 or 16
// values. The last size does not fit into shared memory.
std::vector<std::vector<int64_t>> gpu_sizes() {
  std::vector<std::vector<int64_t>> sizes;
  for (const auto& [nx, ny] : {std::pair{1, 1}, std::pair{3, 5}, std::pair{8, 8}, std::pair{28, 28}}) {
    for (const int64_t inner : {1, 7, 256}) sizes.push_back({nx, ny, inner, 2});
  }
  for (const auto& [nx, ny] : {std::pair{2, 1}, std::pair{33, 31}, std::pair{40, 41}, std::pair{100, 70}}) {
    sizes.push_back({nx, ny, 3, 2});
  }
  sizes.push_back({8, 8, 16, 16, 2});
  sizes.push_back({131, 127, 1, 2});
  return sizes;
}

TEST(ComplexFieldGpu, VerletIsThatOfTheOracle) {
  HRM_NEEDS_GPU();
  for (const auto& sizes : gpu_sizes()) expect_verlet(at::kCUDA, at::kFloat, sizes, 5);
  expect_verlet(at::kCUDA, at::kFloat, {8, 8, 7, 2}, 64);
  expect_verlet(at::kCUDA, at::kDouble, {3, 5, 7, 2}, 5);
}

TEST(ComplexFieldGpu, DissipativeIsThatOfTheOracle) {
  HRM_NEEDS_GPU();
  for (const auto& sizes : gpu_sizes()) expect_dissipative(at::kCUDA, at::kFloat, sizes, 5);
  expect_dissipative(at::kCUDA, at::kFloat, {8, 8, 7, 2}, 64);
  expect_dissipative(at::kCUDA, at::kDouble, {3, 5, 7, 2}, 5);
  expect_collapse(at::kCUDA, at::kDouble);
  expect_collapse(at::kCUDA, at::kFloat);
}

TEST(ComplexFieldGpu, EnergiesAreThoseOfTheOracle) {
  HRM_NEEDS_GPU();
  for (const auto& sizes : gpu_sizes()) expect_energies(at::kCUDA, at::kFloat, sizes);
  expect_energies(at::kCUDA, at::kDouble, {3, 5, 7, 2});
  const WithReference with_reference;
  expect_energies(at::kCUDA, at::kFloat, {3, 5, 7, 2});
}

TEST(ComplexFieldGpu, ManyStepsAreManyCalls) {
  HRM_NEEDS_GPU();
  for (const auto& sizes : gpu_sizes()) expect_steps_add_up(at::kCUDA, at::kFloat, sizes);
}

TEST(ComplexFieldGpu, SkipLeavesEverything) {
  HRM_NEEDS_GPU();
  expect_skip(at::kCUDA);
  const WithReference with_reference;
  expect_skip(at::kCUDA);
}

TEST(ComplexFieldGpu, EnergyIsKept) {
  HRM_NEEDS_GPU();
  expect_energy_is_kept(at::kCUDA, at::kFloat, 0.005);
  expect_energy_is_kept(at::kCUDA, at::kFloat, 0.05);
}

TEST(ComplexFieldGpu, BackwardStepsLeadBack) {
  HRM_NEEDS_GPU();
  expect_reversible(at::kCUDA, at::kFloat, 1e-4);
}

TEST(ComplexFieldGpu, NoValuesAndNoSteps) {
  HRM_NEEDS_GPU();
  expect_nothing_in_no_values(at::kCUDA);
}

TEST(ComplexFieldGpu, SameBitsEachTime) {
  HRM_NEEDS_GPU();
  const std::vector<int64_t> sizes{8, 8, 16, 16, 2};
  const at::Tensor start = normal(sizes, 1, at::kFloat, at::kCUDA), rest = normal(sizes, 2, at::kFloat, at::kCUDA);
  expect_same_each_time(
      [&] {
        const at::Tensor field = start.clone(), momentum = at::zeros_like(start);
        complex_field_verlet_(field, momentum, rest, {}, {}, 64, {});
        const at::Tensor turned = start.clone(), history = count(0, at::kCUDA);
        complex_field_dissipative_(turned, history, rest, {}, {}, {}, 64, {});
        return std::vector<at::Tensor>{field, momentum, turned, history,
                                       complex_field_energies(field, momentum, rest, {})};
      },
      20, "complex field");
}

// A view that begins one float behind is not aligned to complex values: it takes the plain formulas.
TEST(ComplexFieldGpu, AnyAlignment) {
  HRM_NEEDS_GPU();
  const std::vector<int64_t> sizes{3, 5, 7, 2};
  const at::Tensor start = normal(sizes, 1, at::kFloat, at::kCUDA), rest = normal(sizes, 2, at::kFloat, at::kCUDA);
  const at::Tensor want = start.clone(), want_momentum = at::zeros_like(start);
  complex_field_verlet_(want, want_momentum, rest, {}, {}, 10, {});
  const at::Tensor want_energies = complex_field_energies(want, want_momentum, rest, {});
  for (const int64_t offset : {1, 2}) {
    const auto shifted = [&](const at::Tensor& from) {
      const at::Tensor view = at::empty({from.numel() + offset}, from.options()).narrow(0, offset, from.numel());
      return view.copy_(from.flatten()).view(sizes);
    };
    const at::Tensor field = shifted(start), momentum = shifted(at::zeros_like(start)), equilibrium = shifted(rest);
    complex_field_verlet_(field, momentum, equilibrium, {}, {}, 10, {});
    EXPECT_LE(largest_difference(field, want), 1e-6) << offset;
    EXPECT_LE(largest_difference(momentum, want_momentum), 1e-6) << offset;
    const at::Tensor energies = complex_field_energies(shifted(want), shifted(want_momentum), equilibrium, {});
    EXPECT_LE(largest_difference(energies, want_energies), 1e-9) << offset;
    if (offset == 2) expect_same_bits(field, want, "two floats behind");
  }
}

// Field, momentum and history go on from replay to replay, and a flag on the device skips one of them.
TEST(ComplexFieldGpu, SameBitsInAGraph) {
  HRM_NEEDS_GPU();
  for (const auto& sizes : {std::vector<int64_t>{8, 8, 16, 16, 2}, std::vector<int64_t>{28, 28, 7, 2}}) {
    const at::Tensor start = normal(sizes, 1, at::kFloat, at::kCUDA), rest = normal(sizes, 2, at::kFloat, at::kCUDA);
    const at::Tensor push = normal(sizes, 3, at::kFloat, at::kCUDA), skip = scalar(0, at::kCUDA);
    struct State {
      at::Tensor field, momentum, turned, history;
    };
    const auto begin = [&] { return State{start.clone(), at::zeros_like(start), start.clone(), count(0, at::kCUDA)}; };
    const auto run = [&](const State& s) {
      complex_field_verlet_(s.field, s.momentum, rest, push, skip, 64, {});
      complex_field_dissipative_(s.turned, s.history, push, {}, {}, skip, 7, {.periodic = false});
      return complex_field_energies(s.field, s.momentum, rest, {});
    };
    const State in_graph = begin(), eager = begin();
    at::Tensor energies;
    Captured captured([&] { energies = run(in_graph); });
    const State fresh = begin();
    in_graph.field.copy_(fresh.field);
    in_graph.momentum.copy_(fresh.momentum);
    in_graph.turned.copy_(fresh.turned);
    in_graph.history.copy_(fresh.history);
    for (uint64_t replay = 0; replay < 4; ++replay) {
      push.copy_(normal(sizes, 10 + replay, at::kFloat));
      skip.fill_(replay == 2 ? 1 : 0);
      captured.replay();
      const at::Tensor want = run(eager);
      const std::string what = cat(at::IntArrayRef(sizes), " replay ", replay);
      expect_same_bits(in_graph.field, eager.field, what + ", field");
      expect_same_bits(in_graph.momentum, eager.momentum, what + ", momentum");
      expect_same_bits(in_graph.turned, eager.turned, what + ", dissipative");
      expect_same_bits(in_graph.history, eager.history, what + ", history");
      expect_same_bits(energies, want, what + ", energies");
    }
    EXPECT_EQ(eager.history.item<int64_t>(), 20);
  }
}

}  // namespace
}  // namespace hrm::ops
