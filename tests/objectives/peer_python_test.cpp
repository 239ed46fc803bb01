// scripts/bench/lm_model.py, which the benchmarks of language models compare with, is our models: the same parameters
// by name and shape, and with the same weights the same logits, loss and gradients.

#include <ATen/ATen.h>
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "hrm/base/file.h"
#include "hrm/data/batch.h"
#include "hrm/formats/torch_pickle.h"
#include "hrm/models/decoder_lm.h"
#include "hrm/models/hrm_lm.h"
#include "hrm/nn/moe.h"
#include "hrm/objectives/language.h"
#include "hrm/state/tensor_bytes.h"
#include "support/paths.h"
#include "support/python.h"
#include "support/temp_dir.h"

namespace hrm::objectives {
namespace {

using nlohmann::json;

constexpr int64_t kPeerVocabulary = 37, kPeerRows = 3, kPeerTokens = 12, kPrompt = 7;
constexpr nn::MoeOptions kMoe{.experts = 4, .top_k = 2, .inner = 24, .load_weight = 0.5, .z_weight = 0.25};

struct PeerCase {
  std::shared_ptr<models::LanguageModel> model;
  LanguageLossOptions loss = {};
  bool prompt = false;
  json sizes;  // the same for Python
};

models::DecoderOptions decoder_options(bool experts_in_last_layer) {
  models::DecoderOptions o{.vocabulary = kPeerVocabulary,
                           .width = 32,
                           .layers = 2,
                           .heads = 4,
                           .kv_heads = 2,
                           .inner = 40,
                           .positions = 32,
                           .rope_theta = 5000,
                           .eps = 1e-5,
                           .qk_norm = true};
  if (experts_in_last_layer) {
    o.feed_forward = [](int64_t layer) -> std::shared_ptr<nn::FeedForward> {
      if (layer == 1) return std::make_shared<nn::MoeFeedForward>(32, kMoe, at::kCPU);
      return std::make_shared<nn::SwigluFeedForward>(32, 40, at::kCPU);
    };
  }
  return o;
}

json decoder_sizes(bool experts_in_last_layer) {
  json sizes = {{"vocabulary", kPeerVocabulary},
                {"width", 32},
                {"layers", 2},
                {"heads", 4},
                {"kv_heads", 2},
                {"inner", 40},
                {"eps", 1e-5},
                {"rope_theta", 5000},
                {"qk_norm", true}};
  if (experts_in_last_layer) {
    sizes.update({{"moe_every", 2},
                  {"experts", kMoe.experts},
                  {"top_k", kMoe.top_k},
                  {"expert_inner", kMoe.inner},
                  {"load_weight", kMoe.load_weight},
                  {"z_weight", kMoe.z_weight}});
  }
  return sizes;
}

PeerCase decoder_case(bool experts, bool tied) {
  models::DecoderOptions options = decoder_options(experts);
  options.tied = tied;
  json sizes = decoder_sizes(experts);
  sizes["tied"] = tied;
  return {.model = std::make_shared<models::DecoderLm>(options, at::kCPU), .sizes = sizes};
}

// With halting the encoder has experts, too.
PeerCase hrm_case(bool halting, double deep_supervision) {
  models::ModernLmOptions o;
  o.lm.core = {.width = 32, .h_len = 2, .l_len = 3, .h_cycles = 3, .l_steps = 2, .gradient_cycles = 2};
  o.lm.core.halting = halting;
  o.lm.prefix_len = 3;
  o.lm.gate_scale = 0.75;
  o.lm.gate_bias = 0.1;
  o.decoder = decoder_options(/*experts_in_last_layer=*/true);
  o.enc_layers = 2;
  o.h_layers = 1;
  o.l_layers = 2;
  if (halting) o.enc_feed_forward = o.decoder.feed_forward;
  json sizes = decoder_sizes(/*experts_in_last_layer=*/true);
  sizes.update({{"kind", "hrm"},
                {"h_len", 2},
                {"l_len", 3},
                {"h_cycles", 3},
                {"l_steps", 2},
                {"gradient_cycles", 2},
                {"halting", halting},
                {"prefix_len", 3},
                {"gate_scale", 0.75},
                {"gate_bias", 0.1},
                {"enc_layers", 2},
                {"enc_moe_every", halting ? 2 : 0},
                {"h_layers", 1},
                {"l_layers", 2},
                {"deep_supervision", deep_supervision},
                {"halting_weight", 0.3},
                {"halting_target", 1.5}});
  return {.model = models::make_modern_lm(o, at::kCPU),
          .loss = {.deep_supervision = deep_supervision, .halting = 0.3, .halting_target = 1.5},
          .prompt = true,
          .sizes = sizes};
}

// What Python answers about the weights, inputs and results of `c`.
json compared(const PeerCase& c, const std::filesystem::path& folder) {
  models::LanguageModel& model = *c.model;
  model.initialise(/*seed=*/3, at::kFloat);
  {
    // Zeros and ones say nothing about how they are used.
    const at::NoGradGuard no_grad;
    for (const at::Tensor& parameter : model.parameters()) at::Tensor(parameter).add_(at::randn_like(parameter) * 0.1);
  }
  models::LanguageInputs inputs{.ids = at::randint(0, kPeerVocabulary, {kPeerRows, kPeerTokens}, at::kLong)};
  const at::Tensor labels = at::randint(0, kPeerVocabulary, {kPeerRows, kPeerTokens}, at::kLong);
  labels[0].narrow(0, 9, 3).fill_(data::kIgnoreLabel);
  std::vector<std::pair<std::string, at::Tensor>> saved = {{"ids", inputs.ids}, {"labels", labels}};
  if (c.prompt) {
    inputs.prompt_ids = at::randint(0, kPeerVocabulary, {kPeerRows, kPrompt}, at::kLong);
    inputs.prompt_mask = at::ones({kPeerRows, kPrompt}, at::kInt);
    inputs.prompt_mask[1].narrow(0, 4, 3).zero_();
    inputs.prompt_mask[2].zero_();  // padding alone
    inputs.earlier_cycles = c.loss.deep_supervision > 0;
    saved.insert(saved.end(), {{"prompt_ids", inputs.prompt_ids}, {"prompt_mask", inputs.prompt_mask}});
  }
  const models::LanguageOutput output = model.forward(inputs);
  const LanguageLoss loss = language_loss(model, output, labels, c.loss);
  loss.loss.backward();
  {
    const at::NoGradGuard no_grad;
    saved.emplace_back("logits", model.logits(output.hidden));
  }
  saved.emplace_back("loss", loss.loss);
  for (const auto& item : model.named_parameters()) {
    saved.emplace_back("weight/" + item.key(), item.value());
    saved.emplace_back("grad/" + item.key(), item.value().grad());
  }
  std::vector<at::Tensor> hosts;
  std::vector<NamedTensor> entries;
  for (const auto& [name, tensor] : saved) {
    const at::Tensor& host = hosts.emplace_back(host_tensor(tensor));
    entries.push_back({name, dtype_of(host.scalar_type()), host.sizes().vec(), bytes_of(host)});
  }
  const std::filesystem::path file = folder / "peer.pt";
  write_file(file, build_torch_state_dict(entries));
  const auto result =
      test::run_command(test::python_with_torch() + " '" + test::source_dir() + "/scripts/bench/lm_reference.py'" +
                        " --check '" + file.string() + "' --sizes '" + c.sizes.dump() + "'");
  if (result.status != 0) {
    ADD_FAILURE() << result.output;
    return {};
  }
  return json::parse(result.output.substr(result.output.find('{')));
}

int64_t parameter_count(const models::LanguageModel& model) {
  int64_t count = 0;
  for (const at::Tensor& parameter : model.parameters()) count += parameter.numel();
  return count;
}

// Measured: at most 6e-6, and 3e-5 of a gradient's largest entry.
void expect_same(const std::string& what, const PeerCase& c) {
  const test::TempDir folder;
  const json answer = compared(c, folder.path());
  if (answer.is_null()) return;
  EXPECT_EQ(answer.at("parameters"), parameter_count(*c.model)) << what;
  EXPECT_LT(answer.at("logits").get<double>(), 5e-5) << what << ": " << answer;
  for (const char* way : {"plain", "chunked"}) {
    EXPECT_LT(answer.at(way).at("loss").get<double>(), 5e-5) << what << ": " << answer;
    EXPECT_LT(answer.at(way).at("gradients").get<double>(), 5e-4) << what << ": " << answer;
  }
  std::cout << what << ": " << answer << "\n";
}

TEST(Peer, Decoder) {
  if (test::python_with_torch().empty()) GTEST_SKIP() << "no Python that can import torch";
  expect_same("dense, tied", decoder_case(/*experts=*/false, /*tied=*/true));
  expect_same("experts, untied", decoder_case(/*experts=*/true, /*tied=*/false));
}

TEST(Peer, Hrm) {
  if (test::python_with_torch().empty()) GTEST_SKIP() << "no Python that can import torch";
  expect_same("one-step gradient", hrm_case(/*halting=*/false, /*deep_supervision=*/0));
  expect_same("halting, deep supervision, experts in the encoder",
              hrm_case(/*halting=*/true, /*deep_supervision=*/0.4));
}

TEST(Peer, AnotherModelIsRefused) {
  if (test::python_with_torch().empty()) GTEST_SKIP() << "no Python that can import torch";
  PeerCase other = decoder_case(/*experts=*/false, /*tied=*/true);
  other.sizes["layers"] = 3;
  const test::TempDir folder;
  EXPECT_NONFATAL_FAILURE(compared(other, folder.path()), "differ in model.layers.2.");
}

}  // namespace
}  // namespace hrm::objectives
