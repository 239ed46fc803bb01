// A pass on tensors without memory sends what a real one does.
#include "hrm/ops/without_memory.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>

#include "hrm/models/decoder_lm.h"
#include "hrm/models/hrm_lm.h"
#include "hrm/nn/lora.h"
#include "hrm/objectives/language.h"
#include "hrm/parallel/tensor_across.h"
#include "hrm/parallel/tensor_gradients.h"

namespace hrm {
namespace {

struct PassCase {
  const char* name;
  std::function<void(models::DecoderOptions&)> change = [](models::DecoderOptions&) {};
  int64_t lora = 0;
  double dropout = 0;
  std::optional<models::Bridge> bridge = {};
  models::EncoderKind encoder = models::EncoderKind::transformer;
};
void PrintTo(const PassCase& c, std::ostream* out) {
  *out << c.name;
}

class WithoutMemory : public ::testing::TestWithParam<PassCase> {};

std::shared_ptr<models::LanguageModel> make_part(const PassCase& c, std::shared_ptr<const nn::TensorAcross> across,
                                                 at::Device device, std::unique_ptr<nn::LoraSet>& adapter) {
  models::DecoderOptions options{.vocabulary = 97,
                                 .width = 32,
                                 .layers = 2,
                                 .heads = 4,
                                 .kv_heads = 2,
                                 .inner = 48,
                                 .positions = 32,
                                 .qk_norm = true,
                                 .across = std::move(across)};
  c.change(options);
  std::shared_ptr<models::LanguageModel> model;
  if (c.bridge) {
    models::ModernLmOptions o;
    o.decoder = options;
    o.lm.core = {.width = options.width, .h_len = 2, .l_len = 3, .h_cycles = 2, .l_steps = 2, .halting = true};
    o.lm.bridge = *c.bridge;
    o.lm.prefix_len = 3;
    o.encoder = c.encoder;
    o.mamba2 = {.head_dim = 8, .state = 4, .groups = 2, .chunk = 4};
    o.enc_layers = o.h_layers = o.l_layers = 1;
    o.max_prompt = 16;
    model = models::make_modern_lm(o, device);
  } else {
    model = std::make_shared<models::DecoderLm>(options, device);
  }
  if (device.is_cpu()) nn::init_parameters(*model, 3);
  if (c.lora > 0) {
    adapter =
        std::make_unique<nn::LoraSet>(*model, nn::LoraOptions{.rank = c.lora, .dropout = c.dropout, .seed = 5}, device);
    if (device.is_cpu()) adapter->initialise(3);
  }
  model->build_parameters(at::kFloat);
  return model;
}

// What part 1 of 2 sends in a pass, and when its gradients are added.
parallel::CommTraffic traffic_of(const PassCase& c, at::Device device) {
  const std::shared_ptr<parallel::CountingComm> comm = parallel::make_fake_comm(1, 2);
  std::unique_ptr<nn::LoraSet> adapter;
  const auto model = make_part(c, parallel::make_tensor_across(comm), device, adapter);
  parallel::TensorGradients sums(model->parameter_set(), *comm);
  models::LanguageInputs inputs{.ids = at::zeros({2, 11}, at::device(device).dtype(at::kLong))};
  if (c.bridge) {
    inputs.prompt_ids = at::zeros({2, 7}, at::device(device).dtype(at::kLong));
    inputs.prompt_mask = at::ones({2, 7}, at::device(device).dtype(at::kBool));
    inputs.earlier_cycles = true;
  }
  const models::LanguageOutput output = model->forward(inputs);
  objectives::language_loss(*model, output, at::zeros({2, 11}, at::device(device).dtype(at::kLong)),
                            {.deep_supervision = 0.3, .halting = 0.1, .chunk = 10},
                            at::ones({}, at::device(device).dtype(at::kFloat)))
      .loss.backward();
  sums.sum();
  sums.global_norm(/*max_norm=*/1, {});
  return comm->traffic();
}

TEST_P(WithoutMemory, SendsWhatARealPassDoes) {
  const parallel::CommTraffic real = traffic_of(GetParam(), at::kCPU);
  EXPECT_GT(real.operations.size(), 10U);
  const ops::WithoutMemory without;
  EXPECT_EQ(traffic_of(GetParam(), at::kMeta), real);
}

INSTANTIATE_TEST_SUITE_P(
    Passes, WithoutMemory,
    ::testing::Values(PassCase{"plain"}, PassCase{"untied", [](auto& o) { o.tied = false; }},
                      PassCase{"recomputed", [](auto& o) { o.recompute = true; }},
                      PassCase{"window", [](auto& o) { o.window = 4; }}, PassCase{"adapter", [](auto&) {}, 4},
                      PassCase{"dropout", [](auto&) {}, 4, 0.1},
                      PassCase{"many_tokens", [](auto& o) { o.vocabulary = 1000; }},
                      PassCase{"prefix", [](auto&) {}, 0, 0, models::Bridge::prefix},
                      PassCase{"cross", [](auto&) {}, 0, 0, models::Bridge::cross_attention},
                      PassCase{"mamba2", [](auto&) {}, 0, 0, models::Bridge::prefix, models::EncoderKind::mamba2}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(WithoutMemoryGuard, GivesTheBackendBack) {
  ops::set_backend(ops::Backend::fused);
  { const ops::WithoutMemory without; }
  EXPECT_EQ(ops::backend(), ops::Backend::fused);
}

}  // namespace
}  // namespace hrm
