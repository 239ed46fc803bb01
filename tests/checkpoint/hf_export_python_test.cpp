// Exported folders beside transformers where it is installed, else beside the short implementation of hf_check.py
// alone.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "hf_cases.h"
#include "hrm/base/file.h"
#include "hrm/checkpoint/export.h"
#include "hrm/data/tokenizer.h"
#include "hrm/formats/torch_pickle.h"
#include "hrm/state/tensor_bytes.h"
#include "support/python.h"
#include "support/temp_dir.h"

namespace hrm::checkpoint {
namespace {

TEST(HfPython, GivesOurLogits) {
  if (test::python_with_torch().empty()) GTEST_SKIP() << "no Python that can import torch";
  const test::TempDir dir;
  const std::filesystem::path tokenizer_file = HRM_SOURCE_DIR "/tests/fixtures/tokenizer/tokenizer.json";
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
    std::vector<NamedTensor> entries;
    const auto add = [&](const std::string& name, const at::Tensor& t) {
      entries.push_back({name, dtype_of(t.scalar_type()), t.sizes().vec(), bytes_of(t)});
    };
    add("ids", ids);
    add("logits", logits);
    add("text", bytes);
    add("text_ids", tokens);
    export_hf(
        c.options, decoder_weights(*model),
        {.eos = 1500, .pad = 1502, .eos_text = "<|endoftext|>", .pad_text = "<|im_end|>", .tokenizer = tokenizer_file},
        dir / c.name / "model", {.shard_bytes = c.name == "qwen3" ? 40'000u : 5'000'000'000u});  // some in shards
    write_file(dir / c.name / "reference.pt", build_torch_state_dict(entries));
    folders += " '" + (dir / c.name).string() + "'";
  }
  const auto result =
      test::run_command(test::python_with_torch() + " '" HRM_SOURCE_DIR "/tests/checkpoint/hf_check.py'" + folders);
  EXPECT_EQ(result.status, 0) << result.output;
  const bool transformers = result.output.find("transformers: ") != std::string::npos;
  std::cout << (transformers ? "compared with transformers and hf_check.py\n"
                             : "compared with hf_check.py alone: this Python has no transformers\n");
  for (const HfCase& c : hf_cases()) {
    const std::string folder = (dir / c.name).string() + "\n";
    EXPECT_NE(result.output.find("own: " + folder), std::string::npos) << result.output;
    EXPECT_EQ(result.output.find("transformers: " + folder) != std::string::npos, transformers) << result.output;
  }
}

}  // namespace
}  // namespace hrm::checkpoint
