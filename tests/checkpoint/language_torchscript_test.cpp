// Exported language models give our logits in other programs.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/csrc/jit/serialization/import.h>

#include "hrm/base/file.h"
#include "hrm/checkpoint/export.h"
#include "hrm/config/load.h"
#include "hrm/formats/torch_pickle.h"
#include "hrm/state/tensor_bytes.h"
#include "support/expect_error.h"
#include "support/python.h"
#include "support/temp_dir.h"

namespace hrm::checkpoint {
namespace {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;
using Overrides = std::vector<std::string>;

// Products of other sizes and recurrences in chunks round otherwise.
constexpr double kLanguageTolerance = 2e-5;
constexpr int64_t kVocabulary = 300;

struct TorchscriptVariant {
  std::string name;
  Overrides overrides;
};

std::vector<TorchscriptVariant> variants() {
  const auto decoder = [](const Overrides& more) {
    Overrides all{"lm.arch=decoder"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  return {
      {"decoder", decoder({})},
      {"groups", decoder({"lm.kv_heads=2", "lm.qk_norm=true", "lm.tied=false", "lm.head_dim=6"})},
      {"window", decoder({"lm.window=5", "lm.kv_heads=1", "lm.rope_theta=500"})},
      {"experts", decoder({"moe.experts=4", "moe.inner=24", "moe.every=2", "moe.normalize=true"})},
      {"dropped", decoder({"moe.experts=3", "moe.inner=24", "moe.capacity_factor=0.7", "moe.shared_experts=1"})},
      {"balanced", decoder({"moe.experts=4", "moe.inner=24", "moe.score=sigmoid", "moe.bias_rate=0.01"})},
      {"swiglu_experts", decoder({"moe.experts=4", "moe.inner=24", "moe.activation=swiglu", "moe.shared_experts=2"})},
      {"swiglu_dropped", decoder({"moe.experts=3", "moe.activation=swiglu", "moe.capacity_factor=0.7"})},
      {"hrm", {"lm.qk_norm=true", "lm.gate_scale=0.8", "lm.gate_bias=0.1"}},
      {"hrm_experts", {"moe.experts=2", "moe.inner=24", "moe.place=encoder", "objective.halting=0.1"}},
      {"cross_attention", {"lm.bridge=cross_attention", "lm.kv_heads=2"}},
      {"mamba2", {"lm.encoder=mamba2", "lm.mamba_groups=2"}},
      {"prototype", {"lm.style=prototype"}},
      {"prototype_experts", {"lm.style=prototype", "moe.experts=2", "moe.inner=24", "moe.every=2"}}};
}

struct Case {
  config::Config config;
  models::LanguageSizes sizes;
  std::shared_ptr<models::LanguageModel> model;
  NamedTensors weights;
  at::Tensor ids, prompt_ids, prompt_mask;

  explicit Case(const TorchscriptVariant& variant) {
    Overrides all{"task=language",    "lm.hidden_size=32",   "lm.num_heads=4",      "lm.layers=2",
                  "lm.enc_layers=2",  "lm.h_layers=1",       "lm.l_layers=2",       "lm.h_len=2",
                  "lm.l_len=3",       "lm.h_cycles=2",       "lm.l_steps=2",        "lm.prefix_len=3",
                  "lm.mamba_state=8", "lm.mamba_head_dim=8", "data.encoder_len=11", "data.decoder_len=9"};
    all.insert(all.end(), variant.overrides.begin(), variant.overrides.end());
    config = config::load_config({}, all).config;
    sizes = models::language_sizes(config.data, kVocabulary);
    model = models::make_language_model(config, sizes, /*seed=*/5, at::kCPU, at::kFloat);
    at::manual_seed(7);
    const at::NoGradGuard no_grad;
    // Norms, biases and the memories' beginnings must not be what they are at the start; a router's choice must be
    // clear.
    for (const auto& item : model->named_parameters()) {
      at::Tensor(item.value())
          .add_(at::randn_like(item.value()) * (item.key().find("router") == std::string::npos ? 0.1 : 1));
    }
    for (const auto& item : model->named_buffers()) at::Tensor(item.value()).add_(at::randn_like(item.value()) * 0.1);
    for (const auto& item : model->named_parameters()) weights.emplace_back(item.key(), item.value().detach());
    for (const auto& item : model->named_buffers()) weights.emplace_back(item.key(), item.value());
    ids = at::randint(kVocabulary, {3, 9}, at::kLong);
    if (!models::reads_prompts(config.lm)) return;
    prompt_ids = at::randint(kVocabulary, {3, 11}, at::kLong);
    // One row is whole, one padded, one padding alone.
    prompt_mask = at::arange(11).lt(at::tensor({11, 6, 0}).unsqueeze(1));
  }
  at::Tensor logits(const at::Tensor& mask) const {
    const at::NoGradGuard no_grad;
    return model->logits(model->forward({.ids = ids, .prompt_ids = prompt_ids, .prompt_mask = mask}).hidden);
  }
};

TEST(LanguageTorchscript, EveryVariantGivesTheModelsLogits) {
  const test::TempDir dir;
  const torch::jit::GraphOptimizerEnabledGuard no_optimizer{false};
  const at::NoGradGuard no_grad;
  for (const TorchscriptVariant& variant : variants()) {
    SCOPED_TRACE(variant.name);
    const Case c(variant);
    const auto file = dir / (variant.name + ".ts");
    export_language_torchscript(c.config, c.sizes, c.weights, file);
    torch::jit::Module module = torch::jit::load(file.string());
    module.eval();
    const auto expect_logits = [&](const std::vector<c10::IValue>& inputs, const at::Tensor& mask) {
      const at::Tensor got = module.forward(inputs).toTensor(), right = c.logits(mask);
      ASSERT_EQ(got.sizes(), right.sizes());
      EXPECT_TRUE(at::allclose(got, right, kLanguageTolerance, kLanguageTolerance))
          << (got - right).abs().max().item<float>();
    };
    if (!c.prompt_ids.defined()) {
      expect_logits({c.ids}, {});
      expect_logits({c.ids.to(at::kInt)}, {});
      const at::Tensor other = module.forward({c.ids.flip(0)}).toTensor();
      EXPECT_FALSE(at::allclose(other, c.logits({}), 0, 1e-3)) << "the logits depend on the ids";
      continue;
    }
    expect_logits({c.ids, c.prompt_ids}, {});
    expect_logits({c.ids, c.prompt_ids, c.prompt_mask}, c.prompt_mask);
    expect_logits({c.ids, c.prompt_ids, c.prompt_mask.to(at::kInt)}, c.prompt_mask);
    EXPECT_FALSE(at::allclose(c.logits({}), c.logits(c.prompt_mask), 0, 1e-4)) << "the mask matters";
    const at::Tensor other = module.forward({c.ids, c.prompt_ids.flip(0)}).toTensor();
    EXPECT_FALSE(at::allclose(other, c.logits({}), 0, 1e-4)) << "the prompt matters";
  }
}

TEST(LanguageTorchscript, RefusesWeightsOfAnotherModel) {
  const test::TempDir dir;
  Case c(variants()[0]);
  c.config.lm.layers = 3;
  test::expect_error(ExitCode::checkpoint, {"lacks the weights 'model.layers.2."},
                     [&] { export_language_torchscript(c.config, c.sizes, c.weights, dir / "x.ts"); });
  c.config.lm.layers = 2;
  c.sizes.vocabulary = 301;
  test::expect_error(ExitCode::checkpoint, {"'model.embed_tokens.weight' are [300, 32]", "[301, 32]"},
                     [&] { export_language_torchscript(c.config, c.sizes, c.weights, dir / "x.ts"); });
  EXPECT_FALSE(std::filesystem::exists(dir / "x.ts"));
}

// One Python process for everything: importing torch is slow.
TEST(LanguageTorchscript, PythonRunsThem) {
  if (test::python_with_torch().empty()) GTEST_SKIP() << "no Python that can import torch";
  const test::TempDir dir;
  std::string arguments = dir.path().string();
  for (const TorchscriptVariant& variant : variants()) {
    const Case c(variant);
    export_language_torchscript(c.config, c.sizes, c.weights, dir / (variant.name + ".ts"));
    NamedTensors reference{{"ids", c.ids}, {"logits", c.logits(c.prompt_mask).contiguous()}};
    if (c.prompt_ids.defined()) {
      reference.emplace_back("prompt_ids", c.prompt_ids);
      reference.emplace_back("prompt_mask", c.prompt_mask);
    }
    for (const auto& [name, tensor] : c.weights) reference.emplace_back("weight/" + name, tensor);
    std::vector<at::Tensor> hosts;
    std::vector<NamedTensor> entries;
    for (const auto& [name, tensor] : reference) {
      const at::Tensor& host = hosts.emplace_back(host_tensor(tensor));
      entries.push_back({name, dtype_of(host.scalar_type()), host.sizes().vec(), bytes_of(host)});
    }
    write_file(dir / (variant.name + ".reference"), build_torch_state_dict(entries));
    arguments += " " + variant.name;
  }
  const auto result = test::run_python(dir / "check.py", R"(
import sys, torch
torch.set_num_threads(1)
folder = sys.argv[1]
for name in sys.argv[2:]:
    ref = torch.load(f"{folder}/{name}.reference")
    module = torch.jit.load(f"{folder}/{name}.ts").eval()
    inputs = [ref[key] for key in ("ids", "prompt_ids", "prompt_mask") if key in ref]
    with torch.no_grad():
        torch.testing.assert_close(module(*inputs), ref["logits"], rtol=2e-5, atol=2e-5)
    state = module.state_dict()
    weights = {k[7:].replace(".layers.", ".layer"): v for k, v in ref.items() if k.startswith("weight/")}
    unused = {k for k in weights if k.startswith("core.halt.") or k.endswith("jitter_step")}
    spelt = {k for k in state if k.split(".")[-1] not in ("inv_freq", "positions")}
    assert spelt == set(weights) - unused, spelt ^ set(weights)
    for k in spelt:
        assert torch.equal(state[k], weights[k]), k
    print("fine:", name)
)",
                                       arguments);
  EXPECT_EQ(result.status, 0) << result.output;
  for (const TorchscriptVariant& variant : variants()) {
    EXPECT_NE(result.output.find("fine: " + variant.name + "\n"), std::string::npos) << result.output;
  }
}

}  // namespace
}  // namespace hrm::checkpoint
