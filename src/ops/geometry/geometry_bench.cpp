// Cases of `bench ops`, and the kinds of work that profiles count the kernels as.
#include <ATen/ATen.h>

#include <vector>

#include "hrm/runtime/kernel_groups.h"
#include "ops/common/bench_cases.h"

namespace hrm::ops::bench {
namespace {

using c10::IValue;

// The contrastive recipes' number of axes, and of angles.
constexpr int64_t kAxes = 16;

BenchCall rotor_matrix(const BenchShape& /*shape*/, at::Device device, at::ScalarType dtype) {
  return {{Random{device, dtype}.floats({kAxes}), kAxes}};
}

BenchCall rotor_angle_gradient(const BenchShape& /*shape*/, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  return {{random.floats({kAxes}), random.floats({kAxes, kAxes})}};
}

BenchCall lior_step(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  return {{random.floats({s.rows(), kAxes}), random.floats({kAxes}).abs(), random.floats({s.rows()}).abs(), kBenchEps}};
}

// A sequence of the recipe's length and width, and a bank of 2,048 slots, all filled.
BenchCall geometric_retrieval(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  constexpr int64_t kSlots = 2048;
  const Random random{device, dtype};
  return {{random.floats({s.batch, kAxes}), random.scalar(1), random.floats({kAxes}).abs(),
           random.floats({s.batch, s.length(), kAxes}), random.activations({s.batch, s.length(), s.width}), IValue(),
           random.floats({kSlots, kAxes}), random.activations({kSlots, s.width}),
           at::full({}, kSlots, at::device(device).dtype(at::kLong)), 5.0, kBenchEps}};
}

const KernelGroups kGeometryGroups{
    {"rotor_", "geometry"}, {"lior_step", "geometry"},           {"LiorStep", "geometry"},
    {"Rotor", "geometry"},  {"geometric_retrieval", "geometry"}, {"GeometricRetrieval", "geometry"},
};

}  // namespace

std::vector<BenchOp> geometry_cases() {
  return {
      {"hrm::rotor_matrix", rotor_matrix},
      {"hrm::rotor_angle_gradient", rotor_angle_gradient},
      {"hrm::lior_step", lior_step},
      {"hrm::geometric_retrieval", geometric_retrieval},
  };
}

}  // namespace hrm::ops::bench
