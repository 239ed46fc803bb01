#include "ops/gpu_testing.h"
#include "ops/memory/gates_cases.h"
#include "ops/memory/gates_impl.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

TEST(GatesGpu, BridgeAsGoodAsPlainAten) {
  HRM_NEEDS_GPU();
  const WithoutTf32 exact;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    expect_good_gates(dtype, at::kCUDA);
    GateCase moved = make_gate(7, 2, 32, dtype, at::kCUDA);
    moved.bridge = normal({7 * 64 + 1}, 4, dtype, at::kCUDA).slice(0, 1).view({7, 2, 32});
    moved.grad_memory = normal({7 * 64 + 1}, 6, dtype, at::kCUDA).slice(0, 1).view({7, 2, 32});
    moved.z = normal({7 * 32 + 1}, 1, dtype, at::kCUDA).slice(0, 1).view({7, 32});
    expect_good_gate(moved, cat(dtype, " misaligned"));
  }
  expect_gate_edges(at::kCUDA);
}

TEST(GatesGpu, HaltAsGoodAsPlainAten) {
  HRM_NEEDS_GPU();
  const WithoutTf32 exact;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) expect_good_halts(dtype, at::kCUDA);
}

TEST(GatesGpu, HaltingLossAsGoodAsPlainAten) {
  HRM_NEEDS_GPU();
  expect_good_halting_losses(at::kCUDA);
}

TEST(GatesGpu, ReferenceBackendIsTheReference) {
  HRM_NEEDS_GPU();
  const GateCase c = make_gate(7, 2, 24, at::kBFloat16, at::kCUDA);
  const HaltCase h = make_halt(3, 7, 2, 24, at::kBFloat16, at::kCUDA);
  const auto gate = reference::bridge_gate(c.z, c.weight, c.bias, c.bridge, {1.5, -0.25, scalar(0.5, at::kCUDA)});
  const at::Tensor p = reference::halt_probabilities(h.states, h.weight, h.bias);
  const WithReference with_reference;
  const BridgeGate got = bridge_gate(c.z, c.weight, c.bias, c.bridge, 1.5, -0.25, scalar(0.5, at::kCUDA));
  expect_same_bits(got.gate, std::get<0>(gate));
  expect_same_bits(got.memory, std::get<1>(gate));
  expect_same_bits(halt_probabilities(h.states, h.weight, h.bias), p);
  expect_same_bits(halting_loss(p, got.gate, 1), std::get<0>(reference::halting_loss(p, std::get<0>(gate), 1)));
}

TEST(GatesGpu, SameBitsEachTime) {
  HRM_NEEDS_GPU();
  for (const int64_t width : {97, 512}) {
    const GateCase c = make_gate(300, 8, width, at::kBFloat16, at::kCUDA);
    const HaltCase h = make_halt(4, 300, 8, width, at::kBFloat16, at::kCUDA);
    expect_same_each_time([&] { return run_gate(bridge_gate, c).all(); }, 10, cat("gate, width ", width));
    expect_same_each_time([&] { return run_halt(halt_probabilities, h).all(); }, 10, cat("halt, width ", width));
  }
}

// The states, the gate's inputs and the warm-up change from replay to replay.
TEST(GatesGpu, InsideACapturedGraph) {
  HRM_NEEDS_GPU();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t width : {97, 256}) {
      GateCase c = make_gate(20, 8, width, dtype, at::kCUDA);
      c.warmup = scalar(1, at::kCUDA);
      const HaltCase h = make_halt(4, 20, 2, width, dtype, at::kCUDA);
      const auto run = [&] {
        std::vector<at::Tensor> all = run_gate(bridge_gate, c).all();
        const HaltOutcome halted = run_halt(halt_probabilities, h);
        for (const std::vector<at::Tensor>& more : {halted.all(), run_halting_loss(halting_loss, halted.p, all[0])}) {
          all.insert(all.end(), more.begin(), more.end());
        }
        return all;
      };
      std::vector<at::Tensor> got;
      Captured captured([&] { got = run(); });
      for (uint64_t round = 0; round < 3; ++round) {
        c.z.copy_(normal({20, width}, 30 + round, dtype));
        c.bridge.copy_(normal({20, 8, width}, 40 + round, dtype));
        c.warmup.fill_(0.5 + 0.25 * static_cast<double>(round));
        for (const at::Tensor& state : h.states) state.copy_(normal({20, 2, width}, 50 + round, dtype));
        captured.replay();
        const std::vector<at::Tensor> eager = run();
        for (size_t i = 0; i < eager.size(); ++i) {
          expect_same_bits(got[i], eager[i], cat(dtype, " width ", width, " round ", round, ", result ", i));
        }
      }
    }
  }
}

}  // namespace
}  // namespace hrm::ops
