// Cases of `bench ops`, and the kinds of work that profiles count the kernels as.
#include <ATen/ATen.h>

#include <vector>

#include "hrm/runtime/kernel_groups.h"
#include "ops/common/bench_cases.h"

namespace hrm::ops::bench {
namespace {

using c10::IValue;

// What the loss of adaptive computation time takes: one number per slot, and the two Q values.
struct SlotInputs {
  at::Tensor loss, labelled, right, q, target, steps, halted;
};

SlotInputs slot_inputs(const BenchShape& s, at::Device device) {
  const Random random{device, at::kFloat};
  const auto ints = at::device(device).dtype(at::kInt);
  return {at::rand({s.batch}, at::device(device).dtype(at::kDouble)),
          at::full({s.batch}, s.tokens, ints),
          at::randint(0, s.tokens, {s.batch}, ints),
          random.floats({s.batch, 2}),
          at::rand({s.batch}, at::device(device)),
          at::randint(0, 16, {s.batch}, ints),
          at::randint(0, 2, {s.batch}, ints).to(at::kBool)};
}

BenchCall act_q_target(const BenchShape& s, at::Device device, at::ScalarType) {
  const SlotInputs in = slot_inputs(s, device);
  return {{in.q, in.steps, int64_t{16}}};
}

BenchCall act_loss(const BenchShape& s, at::Device device, at::ScalarType) {
  const SlotInputs in = slot_inputs(s, device);
  return {{in.loss, in.labelled, in.right, in.q, in.target, in.steps, in.halted}};
}

BenchCall act_loss_backward(const BenchShape& s, at::Device device, at::ScalarType) {
  const SlotInputs in = slot_inputs(s, device);
  return {{at::ones({}, in.loss.options()), in.loss, in.labelled, in.right, in.q, in.target}};
}

// ACT state; one slot in sixteen starts afresh, as when all halt after sixteen segments.
BenchCall act_begin(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  const auto ints = at::device(device).dtype(at::kInt);
  const std::vector<int64_t> z{s.batch, s.length(), s.width};
  const at::Tensor halted = at::arange(s.batch, at::device(device)).remainder(16).eq(0);
  return {{random.activations(z), random.activations(z), at::zeros({s.batch}, ints), labels(s, device),
           labels(s, device), at::zeros({s.batch}, ints), halted, random.floats({s.width}), random.floats({s.width}),
           labels(s, device), labels(s, device), at::zeros({s.batch}, ints), IValue()}};
}

BenchCall act_end(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  const SlotInputs in = slot_inputs(s, device);
  const std::vector<int64_t> z{s.batch, s.length(), s.width};
  return {{random.activations(z), random.activations(z), in.steps, in.halted, random.activations(z),
           random.activations(z), in.q, at::rand({s.batch}, at::device(device)), at::full_like(in.steps, 2),
           int64_t{16}, 0.1, true, false}};
}

BenchCall add_state_noise(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const auto longs = at::device(device).dtype(at::kLong);
  return {{Random{device, dtype}.activations({s.batch, s.length(), s.width}), at::arange(s.batch, longs),
           at::zeros({s.batch}, longs), 0.1, int64_t{7}}};
}

BenchCall damped_update(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  const std::vector<int64_t> z{s.batch, s.length(), s.width};
  return {{random.activations(z), random.activations(z), at::arange(s.batch, at::device(device).dtype(at::kLong)),
           int64_t{3}, 0.05, 0.01, int64_t{7}}};
}

// As in act_begin: one row in sixteen starts.
BenchCall start_state(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const at::Tensor fresh = at::arange(s.batch, at::device(device)).remainder(16).eq(0);
  return {{Random{device, dtype}.activations({s.batch, s.length(), s.width}), fresh,
           at::arange(s.batch, at::device(device).dtype(at::kLong)), int64_t{0}, 1.0, int64_t{7}}};
}

const KernelGroups kActGroups{
    {"ActLoss", "loss"},
    {"act_loss", "loss"},
    {"ActQTarget", "loss"},
    {"act_q_target", "loss"},
    {"ActBegin", "ACT state"},
    {"ActEnd", "ACT state"},
    {"act_begin", "ACT state"},
    {"act_end", "ACT state"},
    {"add_state_noise", "ACT state"},
    {"start_state", "ACT state"},
    {"damped_update", "state update"},
};

}  // namespace

std::vector<BenchOp> act_cases() {
  return {
      {"hrm::act_q_target", act_q_target},
      {"hrm::act_loss", act_loss},
      {"hrm::act_loss_backward", act_loss_backward},
      {"hrm::act_begin_", act_begin},
      {"hrm::act_end_", act_end},
      {"hrm::add_state_noise_", add_state_noise},
      {"hrm::damped_update", damped_update},
      {"hrm::start_state_", start_state},
  };
}

}  // namespace hrm::ops::bench
