// Exported files give the model's answers in other programs.
#include "hrm/checkpoint/export.h"

#include <gtest/gtest.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/csrc/jit/serialization/import.h>

#include <fstream>

#include "hrm/formats/safetensors.h"
#include "hrm/formats/torch_pickle.h"
#include "hrm/ops/backend.h"
#include "hrm/state/tensor_bytes.h"
#include "model_support.h"
#include "support/expect_error.h"
#include "support/python.h"
#include "support/temp_dir.h"

namespace hrm::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::expect_error;
using test::TempDir;

// The exported program does the operations of the model's reference implementation in the same order: what differs is
// float32 rounding in one or the other vector width.
constexpr double kTolerance = 1e-5;

// The reference implementation for one test.
struct ReferenceOps {
  ReferenceOps() { ops::set_backend(ops::Backend::reference); }
  ~ReferenceOps() { ops::set_backend(ops::Backend::fused); }
  // Quicker for programs that run a few times.
  torch::jit::GraphOptimizerEnabledGuard no_optimizer{false};
};

TEST(Torchscript, EveryVariantGivesTheModelsAnswers) {
  const ReferenceOps reference;
  const TempDir dir;
  for (const Variant& variant : all_variants()) {
    const auto model = make_variant(variant.config);
    const fs::path file = dir / (variant.name + ".ts");
    export_torchscript(variant.config, tensors_of(*model), file);
    torch::jit::Module module = torch::jit::load(file.string());
    module.eval();
    for (const int64_t segments : {1, 4}) {
      const Answers expected = answers_of(*model, sample_inputs(), sample_identifiers(), segments);
      const auto out = module.forward({sample_inputs(), sample_identifiers(), segments}).toTuple()->elements();
      ASSERT_EQ(out.size(), 3u);
      const std::vector<at::Tensor> right = {expected.logits[segments - 1], expected.q_halt[segments - 1],
                                             expected.q_continue[segments - 1]};
      for (size_t i = 0; i < 3; ++i) {
        const at::Tensor got = out[i].toTensor();
        ASSERT_EQ(got.sizes(), right[i].sizes()) << variant.name;
        EXPECT_EQ(got.scalar_type(), at::kFloat);
        EXPECT_TRUE(at::allclose(got, right[i], kTolerance, kTolerance))
            << variant.name << " output " << i << " after " << segments
            << " segments: " << (got - right[i]).abs().max().item<float>();
      }
    }
    // The answers must depend on what they should depend on, else the comparison above says little.
    const auto logits = [&](const at::Tensor& inputs, const at::Tensor& ids, int64_t segments) {
      return module.forward({inputs, ids, segments}).toTuple()->elements()[0].toTensor();
    };
    const at::Tensor one = logits(sample_inputs(), sample_identifiers(), 1);
    EXPECT_FALSE(at::allclose(one, logits(sample_inputs(), sample_identifiers(), 2), 0, 1e-3));
    EXPECT_FALSE(at::allclose(one, logits(sample_inputs().flip(0), sample_identifiers(), 1), 0, 1e-3));
    const bool has_puzzles = variant.config.puzzle_emb_ndim != 0;
    EXPECT_EQ(at::allclose(one, logits(sample_inputs(), sample_identifiers().flip(0), 1), 0, 1e-3), !has_puzzles);
    EXPECT_TRUE(at::equal(one, logits(sample_inputs().to(at::kLong), sample_identifiers().to(at::kLong), 1)));
    EXPECT_ANY_THROW(logits(sample_inputs(), sample_identifiers(), 0)) << "no answer without a segment";
  }
}

TEST(Torchscript, RefusesWeightsOfAnotherModel) {
  const TempDir dir;
  const auto variants = all_variants();
  const auto model = make_variant(variants[0].config);
  config::ModelConfig other = variants[0].config;
  other.L_layers = 2;
  expect_error(ExitCode::checkpoint, {"model.L_layers is 1 there and 2"},
               [&] { export_torchscript(other, tensors_of(*model), dir / "x.ts"); });
  EXPECT_FALSE(fs::exists(dir / "x.ts"));
}

TEST(Safetensors, OfficialNamesAndBytes) {
  const TempDir dir;
  const auto model = make_variant(all_variants()[0].config);
  export_safetensors(tensors_of(*model), dir / "sub/model.safetensors");
  const SafetensorsFile file(dir / "sub/model.safetensors");
  EXPECT_EQ(file.names().size(), tensors_of(*model).size());
  for (const auto& [name, tensor] : tensors_of(*model)) {
    const ArrayView& view = file.at("model.inner." + name);
    EXPECT_TRUE(at::equal(tensor_from_bytes(view.dtype, view.shape, view.bytes), tensor)) << name;
  }
}

TEST(Pt, InitialStatesAreBfloat16WhereThatIsExact) {
  const TempDir dir;
  const NamedTensors weights = {{"H_init", at::full({2}, 0.5)},
                                {"L_init", at::full({2}, 0.1)},
                                {"init_hidden", at::full({2}, 0.5)},
                                {"lm_head.weight", at::full({2}, 0.5)}};
  export_pt(weights, dir / "a.pt");
  const TorchArchive archive(dir / "a.pt");
  EXPECT_EQ(archive.at("_orig_mod.model.inner.H_init").dtype, DType::bf16);
  EXPECT_EQ(archive.at("_orig_mod.model.inner.L_init").dtype, DType::f32);
  EXPECT_EQ(archive.at("_orig_mod.model.inner.init_hidden").dtype, DType::bf16);
  EXPECT_EQ(archive.at("_orig_mod.model.inner.lm_head.weight").dtype, DType::f32);
}

TEST(OutputFile, FailsInOneSentenceAndLeavesNothing) {
  const TempDir dir;
  const NamedTensors weights = {{"H_init", at::ones({2})}};
  expect_error(ExitCode::environment, {"/proc/hrm"}, [&] { export_pt(weights, "/proc/hrm/a.pt"); });
  std::ofstream(dir / "file") << "x";
  expect_error(ExitCode::environment, {"file"}, [&] { export_safetensors(weights, dir / "file/a.pt"); });
  expect_error(ExitCode::environment, {"is a folder"}, [&] { export_pt(weights, dir.path()); });
  // A rename would put a file into the place of /dev/stdout.
  fs::create_symlink("target", dir / "link");
  std::ofstream(dir / "target") << "old";
  expect_error(ExitCode::environment, {"is a link or a device"}, [&] { export_pt(weights, dir / "link"); });
  EXPECT_TRUE(fs::is_symlink(dir / "link"));
  EXPECT_EQ(std::distance(fs::directory_iterator(dir.path()), {}), 3) << "file, link and target alone";
  export_pt(weights, dir / "file");
  EXPECT_EQ(TorchArchive(dir / "file").tensors().size(), 1u) << "an older file is replaced";
}

// One Python process for everything: importing torch is slow.
TEST(Python, OpensAllExports) {
  if (test::python_with_torch().empty()) GTEST_SKIP() << "no Python that can import torch";
  const ReferenceOps reference_ops;
  const TempDir dir;
  std::string arguments = dir.path().string();
  for (const Variant& variant : all_variants()) {
    const auto model = make_variant(variant.config);
    const NamedTensors weights = tensors_of(*model);
    export_torchscript(variant.config, weights, dir / (variant.name + ".ts"));
    export_pt(weights, dir / (variant.name + ".pt"));
    const Answers answers = answers_of(*model, sample_inputs(), sample_identifiers(), 4);
    NamedTensors reference = {{"inputs", sample_inputs()},
                              {"ids", sample_identifiers()},
                              {"logits", answers.logits[3].contiguous()},
                              {"q_halt", answers.q_halt[3].contiguous()},
                              {"q_continue", answers.q_continue[3].contiguous()}};
    for (const auto& [name, tensor] : weights) reference.emplace_back("weight/" + name, tensor);
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
    with torch.no_grad():
        out = module(ref["inputs"], ref["ids"], 4)
    for key, value in zip(("logits", "q_halt", "q_continue"), out):
        torch.testing.assert_close(value, ref[key], rtol=1e-5, atol=1e-5)
    module.train()
    weights = {k[7:]: v for k, v in ref.items() if k.startswith("weight/")}
    spelt = {("." + k).replace(".layers.", ".layer")[1:]: v for k, v in weights.items()}
    state = module.state_dict()
    assert set(state) - {"inv_freq"} == set(spelt), set(state) ^ set(spelt)
    for k, v in spelt.items():
        assert torch.equal(state[k], v), k
    sd = torch.load(f"{folder}/{name}.pt")
    assert list(sd) == ["_orig_mod.model.inner." + k for k in weights], list(sd)
    for k, v in weights.items():
        assert torch.equal(sd["_orig_mod.model.inner." + k].float(), v), k
    print("fine:", name)
)",
                                       arguments);
  EXPECT_EQ(result.status, 0) << result.output;
  for (const Variant& variant : all_variants()) {
    EXPECT_NE(result.output.find("fine: " + variant.name), std::string::npos) << result.output;
  }
}

}  // namespace
}  // namespace hrm::checkpoint
