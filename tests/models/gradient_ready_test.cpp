#include "hrm/nn/gradient_ready.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <numeric>
#include <ostream>

#include "hrm/models/puzzle_model.h"
#include "hrm/ops/backend.h"

namespace hrm::models {
namespace {

struct Case {
  std::string arch;
  bool mlp_t;
  ops::Backend backend;
  at::ScalarType dtype;
  bool all_cycles = false;  // model.gradient_cycles, with a loss for each
  bool recompute = false;
};

std::string name_of(const Case& c) {
  return c.arch + (c.mlp_t ? "_mlp_t" : "") + (c.backend == ops::Backend::fused ? "_fused" : "_reference") +
         (c.dtype == at::kFloat ? "_float" : "_bfloat16") + (c.all_cycles ? "_all_cycles" : "") +
         (c.recompute ? "_recompute" : "");
}
void PrintTo(const Case& c, std::ostream* out) {
  *out << name_of(c);
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const std::string arch : {"hrm", "trm", "transformer", "urm"}) {
    for (const bool mlp_t : {false, true}) {
      if (mlp_t && arch == "urm") continue;  // has no such variant
      for (const ops::Backend backend : {ops::Backend::fused, ops::Backend::reference}) {
        for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
          all.push_back({arch, mlp_t, backend, dtype});
          const bool whole_cycles = arch == "trm" || arch == "urm";
          if (whole_cycles) all.push_back({arch, mlp_t, backend, dtype, /*all_cycles=*/true});
          if (whole_cycles) all.push_back({arch, mlp_t, backend, dtype, /*all_cycles=*/true, /*recompute=*/true});
          if (arch == "hrm") all.push_back({arch, mlp_t, backend, dtype, /*all_cycles=*/false, /*recompute=*/true});
        }
      }
    }
  }
  return all;
}

class GradientReadyTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override { ops::set_backend(GetParam().backend); }
  void TearDown() override { ops::set_backend(ops::Backend::fused); }

  static std::shared_ptr<PuzzleModel> build() {
    config::ModelConfig c;
    c.arch = config::value_of_name<config::PuzzleArch>(GetParam().arch);
    c.mlp_t = GetParam().mlp_t;
    c.pos_encodings = c.mlp_t ? config::PositionEncoding::none : config::PositionEncoding::rope;
    c.hidden_size = 16;
    c.num_heads = 2;
    c.L_layers = 3;
    c.H_layers = c.facts().h_module ? 2 : 0;
    c.H_cycles = 2;
    c.L_cycles = 3;
    if (!c.facts().cycles) c.H_cycles = c.L_cycles = 1;
    if (GetParam().all_cycles) c.gradient_cycles = c.H_cycles;
    c.loss_every_cycle = GetParam().all_cycles;
    c.recompute = GetParam().recompute;
    data::PuzzleMeta meta;
    meta.vocab_size = 11;
    meta.seq_len = 9;
    return make_puzzle_model(c, resolve_dims(c, meta), 0, at::kCPU, GetParam().dtype);
  }

  // Forward and backward pass of one micro-batch, the same for the same seed.
  static void pass(PuzzleModel& model, uint64_t seed) {
    at::manual_seed(seed);
    const int64_t B = 3, L = model.dims().puzzle_emb_len + model.dims().seq_len, D = model.config().hidden_size;
    const Carry carry{at::randn({B, L, D}).to(GetParam().dtype), at::randn({B, L, D}).to(GetParam().dtype)};
    const at::Tensor tokens = at::randint(0, 11, {B, model.dims().seq_len}, at::kInt);
    const at::Tensor rows = at::randn({B, model.dims().puzzle_emb_ndim}).requires_grad_();
    const SegmentOutput out = model.segment(carry, tokens, rows);
    // As for the Q target of a training step: between the two passes, and not recorded.
    model.q_values(carry, tokens, rows);
    at::Tensor loss = out.logits.square().sum() + out.q_halt.sum() + out.q_continue.square().sum();
    EXPECT_EQ(out.earlier.size(), GetParam().all_cycles ? 1u : 0u);
    for (const ReadOut& read : out.earlier) loss = loss + read.position_logits.square().sum() + read.q.square().sum();
    loss.backward();
  }
};

TEST_P(GradientReadyTest, EachGroupOnceInOrderWhenItIsComplete) {
  const auto plain = build(), model = build();
  nn::ParameterSet& set = model->parameter_set();
  nn::GradientReady& ready = *set.gradient_ready();
  std::vector<int> in_order(ready.groups().size());
  std::iota(in_order.begin(), in_order.end(), 0);
  EXPECT_EQ(in_order.size(), GetParam().arch == "hrm" ? 5u : 3u);

  for (uint64_t micro_batch = 1; micro_batch <= 2; ++micro_batch) {
    pass(*plain, micro_batch);
    std::vector<int> reported;
    std::vector<at::Tensor> at_report;
    ready.listen([&](int group) {
      reported.push_back(group);
      at_report.push_back(set.flat_grad().clone());
    });
    pass(*model, micro_batch);
    ASSERT_EQ(reported, in_order) << "micro-batch " << micro_batch;
    EXPECT_TRUE(at::equal(set.flat_grad(), plain->parameter_set().flat_grad())) << "micro-batch " << micro_batch;
    for (const nn::Parameter& parameter : set.all()) {
      if (parameter.group < 0) continue;
      const at::Tensor& grad = parameter.master.grad();
      const at::Tensor& then = at_report[static_cast<size_t>(parameter.group)];
      EXPECT_TRUE(at::equal(then.as_strided(grad.sizes(), grad.strides(), grad.storage_offset()), grad))
          << parameter.name << " changed after it was reported, micro-batch " << micro_batch;
      EXPECT_GT(grad.abs().max().item<float>(), 0) << parameter.name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, GradientReadyTest, testing::ValuesIn(cases()),
                         [](const auto& info) { return name_of(info.param); });

}  // namespace
}  // namespace hrm::models
