// Small models of each family beside transformers and PEFT, where these are installed: the stored numbers made anew,
// and exports opened again.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "hf_families.h"
#include "hrm/checkpoint/export.h"
#include "hrm/checkpoint/peft.h"
#include "support/python.h"
#include "support/temp_dir.h"

namespace hrm::checkpoint {
namespace {

using namespace families;  // NOLINT(google-build-using-namespace)

std::string python_line(const std::string& mode, const fs::path& folder) {
  return cat(test::python_with_torch(), " '", test::source_dir(), "/tests/checkpoint/make_hf_families.py' ", mode, " '",
             folder.string(), "'");
}

// PEFT with transformers 5 takes the adapters of dense layers away where it moves those of experts.
nn::LoraOptions adapter_for_peft(const Opened& it) {
  nn::LoraOptions options = adapter_of(it);
  if (it.options.experts.dense_layers.empty()) return options;
  options.targets.clear();
  options.pattern = R"(.*\.(self_attn\.[qkvo]_proj|experts\.(\d+\.)?(gate|up|down)_proj))";
  options.wants = [](const std::string& layer) {
    return layer.find(".self_attn.") != std::string::npos || layer.find(".experts.") != std::string::npos;
  };
  return options;
}

bool python_has(const std::string& modules) {
  return !test::python_with_torch().empty() &&
         test::run_command(test::python_with_torch() + " -c 'import " + modules + "'").status == 0;
}

TEST(HfPython, FamiliesAreWhatTransformersComputes) {
  if (!python_has("transformers, safetensors")) GTEST_SKIP() << "no Python that can import transformers";
  const auto result = test::run_command(python_line("compare", fixtures()));
  EXPECT_EQ(result.status, 0) << result.output;
  for (const std::string& name : names()) EXPECT_NE(result.output.find("same: " + name + "\n"), std::string::npos);
}

// Exports of each family, with an adapter merged into them and beside them.
TEST(HfPython, FamiliesOpenAgainInTransformers) {
  const bool peft = python_has("transformers, safetensors, peft");
  if (!python_has("transformers, safetensors")) GTEST_SKIP() << "no Python that can import transformers";
  const test::TempDir dir;
  size_t folders = 0;
  const auto add = [&](const std::string& name, bool adapter) {
    Opened it = open_folder(fixtures() / name);
    const fs::path place = dir / (adapter ? name + "_adapter" : name);
    fs::create_directories(place);
    const at::Tensor ids = expected_of(name).ids;
    const HfFormat format{.model_type = it.config.model_type};
    if (adapter) {
      export_hf(it.options, decoder_weights(*it.model), {.bos = 1, .eos = 2}, place / "model", format);
      nn::LoraSet lora(*it.model, adapter_for_peft(it), at::kCPU);
      fill(lora);
      it.model->build_parameters(at::kFloat);
      write_peft(place / "adapter", lora, (place / "model").string());
    } else {
      it.model->build_frozen(at::kFloat);
      export_hf(it.options, decoder_weights(*it.model), {.bos = 1, .eos = 2}, place / "model", format);
    }
    const at::Tensor logits = logits_of(*it.model, ids).contiguous(), row = ids.squeeze(0).contiguous();
    write_safetensors(place / "reference.safetensors",
                      {{"ids", dtype_of(at::kLong), row.sizes().vec(), bytes_of(row)},
                       {"logits", dtype_of(at::kFloat), logits.sizes().vec(), bytes_of(logits)}},
                      {});
    fs::copy_file(fixtures() / name / "config.json", place / "source.json");
    ++folders;
  };
  for (const std::string& name : names()) {
    add(name, false);
    if (peft) add(name, true);
  }
  const auto result = test::run_command(python_line("export", dir.path()));
  EXPECT_EQ(result.status, 0) << result.output;
  size_t agree = 0;
  for (size_t at = 0; (at = result.output.find("agrees: ", at)) != std::string::npos; ++at) ++agree;
  EXPECT_EQ(agree, folders) << result.output;
}

}  // namespace
}  // namespace hrm::checkpoint
