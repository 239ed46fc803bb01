// Exported causal models of every family give our logits in other programs.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/csrc/jit/serialization/import.h>

#include "hf_families.h"
#include "hrm/base/file.h"
#include "hrm/checkpoint/export.h"
#include "hrm/formats/torch_pickle.h"
#include "support/expect_error.h"
#include "support/python.h"
#include "support/temp_dir.h"

namespace hrm::checkpoint {
namespace {

using namespace families;  // NOLINT(google-build-using-namespace)
using Weights = std::vector<std::pair<std::string, at::Tensor>>;

// Of the largest logit. Transformers itself is as far from the same model in float64.
constexpr double kScriptTolerance = 1e-5;

Weights weights_of(const Opened& it) {
  Weights weights;
  for (const auto& item : it.model->named_parameters()) weights.emplace_back(item.key(), item.value().detach());
  return weights;
}

// Several rows of ids, as long as the model allows or nearly.
at::Tensor rows_of(const Opened& it) {
  at::manual_seed(3);
  return at::randint(it.options.vocabulary, {2, std::min<int64_t>(it.options.positions, 40)}, at::kLong);
}

at::Tensor logits_of_rows(DecoderLm& model, const at::Tensor& ids) {
  const at::NoGradGuard no_grad;
  return model.logits(model.forward({.ids = ids}).hidden);
}

TEST(CausalTorchscript, EveryFamilyGivesTheModelsLogits) {
  const test::TempDir dir;
  const torch::jit::GraphOptimizerEnabledGuard no_optimizer{false};
  const at::NoGradGuard no_grad;
  size_t tried = 0;
  for (const std::string& name : names()) {
    SCOPED_TRACE(name);
    const Opened it = open_frozen(name);
    const fs::path file = dir / (name + ".ts");
    export_causal_torchscript(it.options, weights_of(it), file);
    torch::jit::Module module = torch::jit::load(file.string());
    module.eval();
    const auto run = [&](const at::Tensor& ids) { return module.forward({ids}).toTensor(); };
    const at::Tensor ids = rows_of(it), right = logits_of_rows(*it.model, ids);
    const double allowed = kScriptTolerance * std::max(1.0, right.abs().max().item<double>());
    EXPECT_LE(distance(run(ids), right), allowed);
    EXPECT_LE(distance(run(ids.to(at::kInt)), right), allowed);
    EXPECT_GT(distance(run(ids.flip(0)), right), 1e-3) << "the logits depend on the ids";
    const Expected expected = expected_of(name);
    EXPECT_LE(distance(run(expected.ids).squeeze(0), expected.logits), 1e-4) << "and are those of transformers";
    EXPECT_ANY_THROW(run(at::zeros({1, it.options.positions + 1}, at::kLong))) << "a row that is too long";
    ++tried;
  }
  EXPECT_GE(tried, 12u);
}

TEST(CausalTorchscript, RefusesWeightsOfAnotherModel) {
  const test::TempDir dir;
  const Opened it = open_frozen("qwen2");
  const fs::path file = dir / "x.ts";
  Weights fewer = weights_of(it);
  std::erase_if(fewer, [](const auto& item) { return item.first == "model.layers.1.self_attn.qkv_proj.bias"; });
  test::expect_error(ExitCode::checkpoint, {"lack 'model.layers.1.self_attn.qkv_proj.bias'"},
                     [&] { export_causal_torchscript(it.options, fewer, file); });
  Weights others = weights_of(it);
  for (auto& [name, tensor] : others) {
    if (name == "model.norm.weight") tensor = tensor.narrow(0, 1, tensor.size(0) - 1);
  }
  test::expect_error(ExitCode::checkpoint, {"'model.norm.weight' are ["},
                     [&] { export_causal_torchscript(it.options, others, file); });
  EXPECT_FALSE(fs::exists(file));
}

// One Python process for everything, without this library: importing torch is slow.
TEST(CausalTorchscript, PythonRunsThem) {
  if (test::python_with_torch().empty()) GTEST_SKIP() << "no Python that can import torch";
  const test::TempDir dir;
  std::string arguments = dir.path().string();
  for (const std::string& name : names()) {
    const Opened it = open_frozen(name);
    export_causal_torchscript(it.options, weights_of(it), dir / (name + ".ts"));
    const at::Tensor ids = rows_of(it), logits = logits_of_rows(*it.model, ids).contiguous();
    write_file(dir / (name + ".reference"),
               build_torch_state_dict({{"ids", dtype_of(at::kLong), ids.sizes().vec(), bytes_of(ids)},
                                       {"logits", dtype_of(at::kFloat), logits.sizes().vec(), bytes_of(logits)}}));
    arguments += " " + name;
  }
  const auto result = test::run_python(dir / "check.py", R"(
import sys, torch
torch.set_num_threads(1)
folder = sys.argv[1]
for name in sys.argv[2:]:
    ref = torch.load(f"{folder}/{name}.reference")
    module = torch.jit.load(f"{folder}/{name}.ts").eval()
    with torch.no_grad():
        gap = (module(ref["ids"]) - ref["logits"]).abs().max().item()
    assert gap <= 1e-5 * max(1, ref["logits"].abs().max().item()), (name, gap)
    assert "model.embed_tokens.weight" in module.state_dict()
    print("fine:", name)
)",
                                       arguments);
  EXPECT_EQ(result.status, 0) << result.output;
  for (const std::string& name : names()) {
    EXPECT_NE(result.output.find("fine: " + name + "\n"), std::string::npos) << result.output;
  }
}

}  // namespace
}  // namespace hrm::checkpoint
