// Cases of `bench ops`, and the kinds of work that profiles count the kernels as.
#include <ATen/ATen.h>

#include <vector>

#include "hrm/ops/field_potential.h"
#include "hrm/runtime/kernel_groups.h"
#include "ops/common/bench_cases.h"

namespace hrm::ops::bench {
namespace {

using c10::IValue;

constexpr int64_t kWindowSteps = 64;  // of a window
constexpr auto kHarmonic = static_cast<int64_t>(FieldPotential::harmonic);

// No recipe's shapes: the field of the contrastive trainer, 8 x 8 cells of 16 x 16 values.
at::Tensor field(const Random& random) {
  return random.floats({8, 8, 16, 16, 2});
}

BenchCall complex_field_verlet(const BenchShape&, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  return {{field(random), field(random), field(random), field(random), random.scalar(0), kWindowSteps, 0.005, 1.0, 0.1,
           0.01, kHarmonic, true}};
}

BenchCall complex_field_dissipative(const BenchShape&, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  return {{field(random), at::zeros({}, at::device(device).dtype(at::kLong)), field(random), IValue(), IValue(),
           random.scalar(0), kWindowSteps, 0.005, 1.0, 0.1, 0.025, 0.3, 0.5, int64_t{20}, true}};
}

BenchCall complex_field_energies(const BenchShape&, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  return {{field(random), field(random), field(random), 1.0, 0.1, 0.01, kHarmonic, true}};
}

const KernelGroups kFieldGroups{
    {"ComplexField", "complex field"},
    {"complex_field", "complex field"},
};

}  // namespace

std::vector<BenchOp> field_cases() {
  return {
      {"hrm::complex_field_verlet_", complex_field_verlet},
      {"hrm::complex_field_dissipative_", complex_field_dissipative},
      {"hrm::complex_field_energies", complex_field_energies},
  };
}

}  // namespace hrm::ops::bench
