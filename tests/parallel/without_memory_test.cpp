// A pass on tensors without memory sends what a real one does.
#include "hrm/ops/without_memory.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "hrm/nn/lora.h"
#include "hrm/objectives/language.h"
#include "hrm/parallel/tensor_across.h"
#include "hrm/parallel/tensor_gradients.h"
#include "nn/step_rows_cases.h"
#include "parallel/small_lm.h"

namespace hrm {
namespace {

struct PassCase {
  const char* name;
  test::SmallLm lm = {};
  int64_t lora = 0;
  double dropout = 0;
};
void PrintTo(const PassCase& c, std::ostream* out) {
  *out << c.name;
}

class WithoutMemory : public ::testing::TestWithParam<PassCase> {};

std::shared_ptr<models::LanguageModel> make_part(const PassCase& c, std::shared_ptr<const nn::TensorAcross> across,
                                                 at::Device device, std::unique_ptr<nn::LoraSet>& adapter) {
  auto model = test::make_small_lm(c.lm, std::move(across), device);
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
  if (c.lm.bridge) {
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
    ::testing::Values(PassCase{"plain"}, PassCase{"odd_vocabulary", {[](auto& o) { o.vocabulary = 97; }}},
                      PassCase{"untied", {[](auto& o) { o.tied = false; }}},
                      PassCase{"recomputed", {[](auto& o) { o.recompute = true; }}},
                      PassCase{"window", {[](auto& o) { o.window = 4; }}}, PassCase{.name = "adapter", .lora = 4},
                      PassCase{.name = "dropout", .lora = 4, .dropout = 0.1},
                      PassCase{"many_tokens", {[](auto& o) { o.vocabulary = 1000; }}},
                      PassCase{"prefix", {.bridge = models::Bridge::prefix}},
                      PassCase{"cross", {.bridge = models::Bridge::cross_attention}},
                      PassCase{"mamba2", {.bridge = models::Bridge::prefix, .encoder = models::EncoderKind::mamba2}}),
    [](const auto& info) { return std::string(info.param.name); });

// What a recomputed block returns is not read again. So in the second call its last layer sends nothing, and multiplies
// nothing but for its adapter. The rows of both layers are gathered again, and attention's sums sent again.
TEST(RecomputedParts, SendTheirResultOnce) {
  using Kind = parallel::CommOperation::Kind;
  for (const int64_t lora : {0, 4}) {
    int64_t products = 0;  // in the second pass more than in the first
    const auto traffic = [&](bool recompute) {
      const nn::testing::OpCount count("hrm::linear");
      const parallel::CommTraffic sent =
          traffic_of({.name = "", .lm = {[&](auto& o) { o.recompute = recompute; }}, .lora = lora}, at::kCPU);
      products = count.count() - products;
      return sent;
    };
    const parallel::CommTraffic kept = traffic(false), again = traffic(true);
    constexpr int64_t kLayers = 2;
    // Layers beside the exchange send from place to place, those with an adapter all at once.
    const auto sent = [](const parallel::CommTraffic& t) {
      return t.calls(Kind::all_to_all) + t.calls(Kind::exchange);
    };
    EXPECT_EQ(sent(again) - sent(kept), kLayers) << "rank " << lora;
    EXPECT_EQ(again.calls(Kind::all_gather) - kept.calls(Kind::all_gather), 2 * kLayers) << "rank " << lora;
    // Calls of products in the second call of a block: that of the last layer, two calls with an adapter, is missing.
    EXPECT_EQ(products, kLayers * (lora == 0 ? 2 : 14)) << "rank " << lora;
  }
}

TEST(WithoutMemoryGuard, GivesTheBackendBack) {
  ops::set_backend(ops::Backend::fused);
  { const ops::WithoutMemory without; }
  EXPECT_EQ(ops::backend(), ops::Backend::fused);
}

}  // namespace
}  // namespace hrm
