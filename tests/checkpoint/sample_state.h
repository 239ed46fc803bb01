#pragma once
// A small state with every type, role and kind of scalar that a checkpoint can hold.

#include <ATen/ATen.h>

#include <cmath>
#include <limits>

#include "hrm/base/file.h"
#include "hrm/checkpoint/checkpoint.h"
#include "hrm/state/registry.h"

namespace hrm::checkpoint {

class SampleState : public Stateful {
 public:
  // Different seeds: different values everywhere.
  explicit SampleState(int64_t seed) {
    const auto values = [seed](at::IntArrayRef shape, at::ScalarType type) {
      int64_t count = 1;
      for (const int64_t size : shape) count *= size;
      const at::Tensor raw = at::arange(count, at::kLong).mul(7919).add(seed * 104729).remainder(251).sub(125);
      return (type == at::kBool ? raw.remainder(2) : raw)
          .to(at::kDouble)
          .mul(type == at::kBool ? 1 : 0.3)
          .to(type)
          .view(shape);
    };
    weight = values({4, 3}, at::kFloat).set_requires_grad(true);
    bias = values({4}, at::kFloat).set_requires_grad(true);
    table = values({5, 2}, at::kFloat);
    half = values({3}, at::kBFloat16);
    average = values({4, 3}, at::kFloat).add(seed + 0.5);
    moment = values({4, 3}, at::kFloat).t();  // strides differ from C order
    types = {values({3}, at::kByte),   values({3}, at::kChar), values({2}, at::kShort),       values({3}, at::kInt),
             values({5}, at::kLong),   values({3}, at::kHalf), values({2, 2}, at::kBFloat16), values({3}, at::kFloat),
             values({2}, at::kDouble), values({7}, at::kBool)};
    scalar = at::full({}, seed * 1.25, at::kDouble);
    empty = at::empty({0, 4});
    odd = at::full({4}, 0.0, at::kFloat);
    odd.data_ptr<float>()[0] = std::numeric_limits<float>::quiet_NaN();
    odd.data_ptr<float>()[1] = -0.0f;
    odd.data_ptr<float>()[2] = std::numeric_limits<float>::denorm_min() * static_cast<float>(seed);
    step = seed == 0 ? 0 : std::numeric_limits<int64_t>::min() + seed;
    third = static_cast<double>(seed) / 3;
    tiny = -static_cast<double>(seed) * std::numeric_limits<double>::denorm_min();
    infinite = seed % 2 == 0 ? HUGE_VAL : -HUGE_VAL;
  }

  void visit_state(StateVisitor& v) override {
    v.tensor("H_level.layers.0.mlp.weight", weight, StateRole::weight);
    v.tensor("q_head.bias", bias, StateRole::weight);
    v.tensor("puzzle_emb.weights", table, StateRole::weight);
    v.tensor("H_init", half, StateRole::weight);
    v.tensor("ema.H_level.layers.0.mlp.weight", average, StateRole::ema);
    v.tensor("optim.H_level.layers.0.mlp.weight.m", moment, StateRole::optimizer);
    for (size_t i = 0; i < types.size(); ++i) v.tensor(cat("carry.type", i), types[i], StateRole::carry);
    v.tensor("carry.split", odd, StateRole::carry, rows_part(odd.sizes(), 0, 4));
    v.tensor("loop.scalar", scalar, StateRole::loop);
    v.tensor("loop.empty", empty, StateRole::loop);
    v.integer("loop.step", step);
    v.real("loop.third", third);
    v.real("loop.tiny", tiny);
    v.real("loop.infinite", infinite);
  }

  at::Tensor weight, bias, table, half, average, moment, scalar, empty, odd;
  std::vector<at::Tensor> types;
  int64_t step;
  double third, tiny, infinite;
};

inline CheckpointMeta sample_meta(int64_t step) {
  CheckpointMeta meta;
  meta.step = step;
  meta.config_json = "{\"task\": \"puzzle\"}\n";
  meta.info = {{"model", "sample, 12 parameters"}, {"odd", "line\nbreak"}};
  return meta;
}

}  // namespace hrm::checkpoint
