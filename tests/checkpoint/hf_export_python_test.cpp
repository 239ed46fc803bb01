// Exported folders beside transformers and PEFT where they are installed, else beside the short implementation of
// hf_check.py alone.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "hf_cases.h"
#include "hrm/base/file.h"
#include "hrm/checkpoint/export.h"
#include "hrm/checkpoint/hf_import.h"
#include "hrm/checkpoint/peft.h"
#include "hrm/data/tokenizer.h"
#include "hrm/formats/safetensors_set.h"
#include "hrm/formats/torch_pickle.h"
#include "hrm/nn/frozen_weight.h"
#include "hrm/nn/linear.h"
#include "hrm/state/tensor_bytes.h"
#include "support/paths.h"
#include "support/python.h"
#include "support/temp_dir.h"

namespace hrm::checkpoint {
namespace {

std::string check_command() {
  return test::python_with_torch() + " '" + test::source_dir() + "/tests/checkpoint/hf_check.py'";
}

// What hf_check.py has said of `folder`: that its own implementation agrees, and of the library, if it is there.
void expect_agrees(const std::string& output, const std::string& library, const std::string& folder) {
  EXPECT_NE(output.find("own: " + folder + "\n"), std::string::npos) << output;
  const bool is_there = output.find(library + ": ") != std::string::npos;
  EXPECT_EQ(output.find(library + ": " + folder + "\n") != std::string::npos, is_there) << output;
  std::cout << folder.substr(folder.rfind('/') + 1)
            << (is_there ? " compared with " + library + " and" : " compared with") << " hf_check.py"
            << (is_there ? "" : " alone: this Python has no " + library) << "\n";
}

NamedTensor entry(const std::string& name, const at::Tensor& t) {
  return {name, dtype_of(t.scalar_type()), t.sizes().vec(), bytes_of(t)};
}

TEST(HfPython, GivesOurLogits) {
  if (test::python_with_torch().empty()) GTEST_SKIP() << "no Python that can import torch";
  const test::TempDir dir;
  const std::filesystem::path tokenizer_file = test::source_dir() + "/tests/fixtures/tokenizer/tokenizer.json";
  const std::string text = "To be, or not to be: that is the question\n";
  const std::vector<int32_t> text_ids = data::Tokenizer::load(tokenizer_file).encode(text);
  std::string folders;
  for (const HfCase& c : hf_cases()) {
    const at::NoGradGuard no_grad;
    const auto model = hf_decoder(c.options);
    const at::Tensor ids = at::randint(0, c.options.vocabulary, {2, 19}, at::kLong);
    const at::Tensor logits = model->logits(model->forward({.ids = ids}).hidden);
    const at::Tensor bytes = at::tensor(std::vector<int64_t>(text.begin(), text.end()), at::kLong);
    const at::Tensor tokens = at::tensor(std::vector<int64_t>(text_ids.begin(), text_ids.end()), at::kLong);
    export_hf(
        c.options, decoder_weights(*model),
        {.eos = 1500, .pad = 1502, .eos_text = "<|endoftext|>", .pad_text = "<|im_end|>", .tokenizer = tokenizer_file},
        dir / c.name / "model", {.shard_bytes = c.name == "qwen3" ? 40'000u : 5'000'000'000u});  // some in shards
    write_file(dir / c.name / "reference.pt",
               build_torch_state_dict(
                   {entry("ids", ids), entry("logits", logits), entry("text", bytes), entry("text_ids", tokens)}));
    folders += " '" + (dir / c.name).string() + "'";
  }
  const auto result = test::run_command(check_command() + folders);
  EXPECT_EQ(result.status, 0) << result.output;
  for (const HfCase& c : hf_cases()) expect_agrees(result.output, "transformers", (dir / c.name).string());
}

// Weights in 8 bits, read by transformers and compressed-tensors, give the logits of our own quantised layers.
TEST(HfPython, WeightsIn8BitsGiveOurLogits) {
  if (test::python_with_torch().empty()) GTEST_SKIP() << "no Python that can import torch";
  const test::TempDir dir;
  std::string folders;
  std::vector<std::string> names;
  for (const HfCase& c : {hf_cases()[0], hf_cases()[3]}) {
    for (const nn::WeightFormat format : {nn::WeightFormat::fp8, nn::WeightFormat::int8}) {
      const at::NoGradGuard no_grad;
      const std::filesystem::path folder = dir / cat(c.name, "_", nn::name(format));
      export_hf(c.options, decoder_weights(*hf_decoder(c.options)), {}, folder / "model",
                {.dtype = at::kFloat, .weights = format});
      models::DecoderOptions options = c.options;
      options.weights = format;
      const auto model = std::make_shared<models::DecoderLm>(options, at::kCPU);
      load_hf_weights(SafetensorsSet(folder / "model"), options, *model, /*untie=*/false,
                      read_hf_config(folder / "model").stored);
      model->build_frozen(at::kFloat);
      nn::share_quantized_workspace(*model, at::kFloat);
      const at::Tensor ids = at::randint(0, c.options.vocabulary, {2, 19}, at::kLong);
      const at::Tensor logits = model->logits(model->forward({.ids = ids}).hidden);
      write_file(folder / "reference.pt", build_torch_state_dict({entry("ids", ids), entry("logits", logits)}));
      names.push_back(folder.string());
      folders += " '" + names.back() + "'";
    }
  }
  const auto result = test::run_command(test::python_with_torch() + " '" + test::source_dir() +
                                        "/tests/checkpoint/hf_8bit_check.py'" + folders);
  EXPECT_EQ(result.status, 0) << result.output;
  if (result.output.find("skipped: ") != std::string::npos) GTEST_SKIP() << result.output;
  for (const std::string& name : names) {
    EXPECT_NE(result.output.find("compressed-tensors: " + name), std::string::npos) << result.output;
  }
}

// An adapter in PEFT's format beside the model in that of transformers.
TEST(HfPython, AnAdapterGivesOurLogits) {
  if (test::python_with_torch().empty()) GTEST_SKIP() << "no Python that can import torch";
  const test::TempDir dir;
  std::string folders;
  const std::vector<std::pair<std::string, nn::LoraOptions>> cases = {
      {"all", {.rank = 3, .alpha = 6}},
      {"some", {.rank = 4, .alpha = 2, .rslora = true, .targets = {"q_proj", "v_proj", "down_proj"}}}};
  for (const auto& [name, options] : cases) {
    const at::NoGradGuard no_grad;
    const models::DecoderOptions decoder = hf_cases()[3].options;
    const auto model = hf_decoder(decoder);
    export_hf(decoder, decoder_weights(*model), {}, dir / name / "model");
    nn::LoraSet lora(*model, options, at::kCPU);
    for (const nn::LoraAdapter::Pair& pair : lora.pairs()) {
      pair.A.normal_();
      pair.B.normal_();
    }
    const at::Tensor ids = at::randint(0, decoder.vocabulary, {2, 19}, at::kLong);
    const at::Tensor logits = model->logits(model->forward({.ids = ids}).hidden);
    write_peft(dir / name / "adapter", lora, (dir / name / "model").string());
    write_file(dir / name / "reference.pt", build_torch_state_dict({entry("ids", ids), entry("logits", logits)}));
    folders += " '" + (dir / name).string() + "'";
  }
  const auto result = test::run_command(check_command() + folders);
  EXPECT_EQ(result.status, 0) << result.output;
  for (const auto& [name, options] : cases) expect_agrees(result.output, "peft", (dir / name).string());
}

}  // namespace
}  // namespace hrm::checkpoint
