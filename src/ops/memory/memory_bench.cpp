// Cases of `bench ops`.
#include <ATen/ATen.h>

#include <vector>

#include "ops/common/bench_cases.h"

namespace hrm::ops::bench {
namespace {

using c10::IValue;

// The gate of a bridge of 8 vectors, and halting after each of 4 cycles, for the recipe's batch.
struct GateInputs {
  static constexpr int64_t kVectors = 8, kCycles = 4;
  at::Tensor z, weight, bias, bridge, p;
  std::vector<at::Tensor> states;
};

GateInputs gate_inputs(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  const std::vector<int64_t> vectors{s.batch, GateInputs::kVectors, s.width};
  GateInputs in{random.activations({s.batch, s.width}),
                random.weight(1, s.width).to(at::kFloat),
                random.floats({1}),
                random.activations(vectors),
                random.floats({GateInputs::kCycles, s.batch}).sigmoid(),
                {}};
  for (int64_t cycle = 0; cycle < GateInputs::kCycles; ++cycle) in.states.push_back(random.activations(vectors));
  return in;
}

BenchCall bridge_gate(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const GateInputs in = gate_inputs(s, device, dtype);
  return {{in.z, in.weight, in.bias, in.bridge, 1.0, 0.0, Random{device, dtype}.scalar(1)}};
}

BenchCall bridge_gate_backward(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const GateInputs in = gate_inputs(s, device, dtype);
  return {{IValue(), at::randn_like(in.bridge), in.z, in.weight, in.bridge, in.p[0].unsqueeze(1), 1.0, 0.0,
           Random{device, dtype}.scalar(1), at::zeros_like(in.weight), at::zeros_like(in.bias)}};
}

BenchCall halt_probabilities(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const GateInputs in = gate_inputs(s, device, dtype);
  return {{in.states, in.weight, in.bias}};
}

BenchCall halt_probabilities_backward(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const GateInputs in = gate_inputs(s, device, dtype);
  return {{at::randn_like(in.p), in.p, in.states, in.weight, at::zeros_like(in.weight), at::zeros_like(in.bias)}};
}

BenchCall halting_loss(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const GateInputs in = gate_inputs(s, device, dtype);
  return {{in.p, in.p[0].clone(), 1.0}};
}

// A language model's core: as many memories as samples, of 64 vectors, two blocks, two steps.
BenchCall memory_blocks(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  const int64_t D = s.width;
  std::vector<at::Tensor> weights;
  for (int block = 0; block < 2; ++block) {
    weights.insert(weights.end(), {random.floats({D}), random.floats({D}), random.weight(3 * D, D), random.weight(D, D),
                                   random.weight(2 * s.inner, D), random.weight(D, s.inner)});
  }
  return {{random.activations({s.batch, 64, D}), random.activations({s.batch, D}), random.activations({64, D}), weights,
           random.floats({D}), false, s.heads, int64_t{2}, 1e-6},
          4.0 * 2 * 64 * static_cast<double>(s.batch * D * (4 * D + 3 * s.inner + 2 * 64))};
}

}  // namespace

std::vector<BenchOp> memory_cases() {
  return {
      {"hrm::bridge_gate", bridge_gate},
      {"hrm::bridge_gate_backward_", bridge_gate_backward},
      {"hrm::halt_probabilities", halt_probabilities},
      {"hrm::halt_probabilities_backward_", halt_probabilities_backward},
      {"hrm::halting_loss", halting_loss},
      {"hrm::memory_blocks", memory_blocks},
      {"hrm::memory_blocks_forward", memory_blocks},
  };
}

}  // namespace hrm::ops::bench
