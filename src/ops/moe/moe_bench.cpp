// Cases of `bench ops`.
#include <ATen/ATen.h>

#include <vector>

#include "hrm/ops/moe.h"
#include "ops/common/bench_cases.h"

namespace hrm::ops::bench {
namespace {

using c10::IValue;

// A mixture of experts instead of the recipe's feed-forward layer.
struct MoeInputs {
  at::Tensor x, logits, up, gate_up, down, xp, act, kept, y;
  ops::MoeGate gate;
  ops::MoePlan plan;
};

MoeInputs moe_inputs(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  MoeInputs in;
  in.x = random.activations({s.rows(), s.width});
  in.logits = random.floats({s.rows(), s.experts});
  in.up = random.weight(s.experts * s.inner, s.width).view({s.experts, s.inner, s.width});
  in.gate_up = random.weight(s.experts * 2 * s.inner, s.width).view({s.experts, 2 * s.inner, s.width});
  in.down = random.weight(s.experts * s.width, s.inner).view({s.experts, s.width, s.inner});
  in.gate = ops::moe_gate(in.logits, s.picks, ops::MoeScore::softmax, /*normalize=*/false);
  in.plan = ops::moe_plan(in.gate.ids, s.experts);
  const int64_t rows = in.plan.picks.size(0);
  in.xp = random.activations({rows, s.width});
  in.act = random.activations({rows, s.inner});
  in.kept = random.activations({rows, 2 * s.inner});
  in.y = random.activations({rows, s.width});
  return in;
}

double moe_flops(const BenchShape& s) {
  return product_flops(s.picks * s.rows(), s.width, s.inner);
}

BenchCall moe_router(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  const at::Tensor weight = random.weight(s.experts, s.width);
  return {{random.activations({s.rows(), s.width}), weight, weight.to(at::kFloat), IValue()},
          product_flops(s.rows(), s.width, s.experts)};
}

BenchCall moe_gate(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  return {{moe_inputs(s, device, dtype).logits, s.picks, false, false, IValue()}};
}

BenchCall moe_gate_backward(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const MoeInputs in = moe_inputs(s, device, dtype);
  return {{at::randn_like(in.gate.weights), IValue(), in.gate.ids, in.gate.scores, false, false}};
}

BenchCall moe_jitter(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  return {{moe_inputs(s, device, dtype).x, at::zeros({}, at::device(device).dtype(at::kLong)), 0.01, 7}};
}

BenchCall moe_plan(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  return {{moe_inputs(s, device, dtype).gate.ids, s.experts}};
}

BenchCall moe_gather(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const MoeInputs in = moe_inputs(s, device, dtype);
  return {{in.x, in.plan.picks, in.plan.starts, s.picks}};
}

BenchCall moe_up(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const MoeInputs in = moe_inputs(s, device, dtype);
  return {{in.xp, in.up, in.plan.tile_experts, in.plan.starts}, moe_flops(s)};
}

BenchCall moe_up_backward(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const MoeInputs in = moe_inputs(s, device, dtype);
  return {{in.y, in.down, in.act, in.plan.tile_experts, in.plan.starts}, moe_flops(s)};
}

BenchCall moe_up_swiglu(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const MoeInputs in = moe_inputs(s, device, dtype);
  return {{in.xp, in.gate_up, in.plan.tile_experts, in.plan.starts, true}, 2 * moe_flops(s)};
}

BenchCall moe_up_swiglu_backward(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const MoeInputs in = moe_inputs(s, device, dtype);
  return {{in.y, in.down, in.kept, in.plan.tile_experts, in.plan.starts}, moe_flops(s)};
}

BenchCall moe_linear(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const MoeInputs in = moe_inputs(s, device, dtype);
  return {{in.act, in.down, in.plan.tile_experts, in.plan.starts, false}, moe_flops(s)};
}

BenchCall moe_accumulate(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const MoeInputs in = moe_inputs(s, device, dtype);
  const at::Tensor grad = at::zeros({s.experts, s.inner, s.width}, at::device(device));
  return {{grad, in.act, in.xp, in.plan.tile_experts, in.plan.starts}, moe_flops(s)};
}

BenchCall moe_combine(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const MoeInputs in = moe_inputs(s, device, dtype);
  return {{in.y, in.plan.rows, in.gate.weights}};
}

BenchCall moe_combine_backward(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const MoeInputs in = moe_inputs(s, device, dtype);
  return {{in.x, in.y, in.plan.picks, in.plan.starts, in.gate.weights}};
}

// Experts with SwiGLU in the shape of a model that has such, with GELU in the others.
BenchCall moe_experts(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const MoeInputs in = moe_inputs(s, device, dtype);
  const bool swiglu = !s.only.empty();
  const at::Tensor& up = swiglu ? in.gate_up : in.up;
  return {{in.x, in.gate.weights, in.plan.rows, in.plan.picks, in.plan.tile_experts, in.plan.starts, up, up, in.down,
           in.down, IValue(), IValue(), IValue(), swiglu},
          (swiglu ? 3 : 2) * moe_flops(s)};
}

BenchCall moe_load_loss(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const MoeInputs in = moe_inputs(s, device, dtype);
  return {{in.gate.scores, in.plan.counts, IValue(),
           at::zeros({in.plan.counts.size(0) + 1}, at::device(device).dtype(at::kDouble))}};
}

// Loads of as many mixtures as the recipe has layers.
BenchCall moe_loads(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  std::vector<at::Tensor> counts;
  for (int64_t layer = 0; layer < s.layers; ++layer) {
    counts.push_back(random.floats({s.experts + 1}).abs().to(at::kDouble));
  }
  return {{at::zeros({s.layers, 3}, at::device(device).dtype(at::kDouble)), counts}};
}

}  // namespace

std::vector<BenchOp> moe_cases() {
  return {
      {"hrm::moe_router", moe_router},
      {"hrm::moe_gate", moe_gate},
      {"hrm::moe_jitter", moe_jitter},
      {"hrm::moe_gate_backward", moe_gate_backward},
      {"hrm::moe_plan", moe_plan},
      {"hrm::moe_gather", moe_gather},
      {"hrm::moe_up", moe_up},
      {"hrm::moe_up_backward", moe_up_backward},
      {"hrm::moe_up_swiglu", moe_up_swiglu},
      {"hrm::moe_up_swiglu_backward", moe_up_swiglu_backward},
      {"hrm::moe_linear", moe_linear},
      {"hrm::moe_linear_portable", moe_linear},
      {"hrm::moe_accumulate_", moe_accumulate},
      {"hrm::moe_accumulate_portable_", moe_accumulate},
      {"hrm::moe_combine", moe_combine},
      {"hrm::moe_combine_backward", moe_combine_backward},
      {"hrm::moe_experts", moe_experts},
      {"hrm::moe_load_loss_", moe_load_loss},
      {"hrm::moe_loads_", moe_loads},
  };
}

}  // namespace hrm::ops::bench
