#pragma once
// A polychromic training small enough for a unit test: a Qwen3 of two layers with random weights, prompts that have
// several right answers.

#include <unistd.h>

#include <fstream>
#include <sstream>

#include "hrm/commands/language_data.h"
#include "hrm/tasks/polychromic.h"
#include "train/small_run.h"

namespace hrm::testing {

// Prompts with answers and their tokenizer, made once per process; beside them `model` and, with experts, `experts`:
// folders with config.json alone.
inline std::filesystem::path answers_folder() {
  static const std::filesystem::path folder = [] {
    const auto dir = std::filesystem::path(::testing::TempDir()) / ("hrm_answers_" + std::to_string(getpid()));
    data::AnswersCommand command;
    command.options.train = 60;
    command.options.validation = 10;
    command.options.test = 10;
    command.out = (dir / "data").string();
    std::ostringstream out;
    data::run_data_answers(command, out);
    std::filesystem::create_directories(dir / "model");
    std::ofstream(dir / "model" / "config.json")
        << R"({"model_type": "qwen3", "vocab_size": 264, "hidden_size": 32, "intermediate_size": 48,
               "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
               "max_position_embeddings": 128, "tie_word_embeddings": true})";
    std::filesystem::create_directories(dir / "experts");
    std::ofstream(dir / "experts" / "config.json")
        << R"({"model_type": "qwen3_moe", "vocab_size": 264, "hidden_size": 32, "intermediate_size": 48,
               "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
               "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "norm_topk_prob": true,
               "max_position_embeddings": 128, "tie_word_embeddings": true})";
    return dir;
  }();
  return folder;
}

inline config::LoadedConfig small_polychromic_config(const std::filesystem::path& dir,
                                                     const std::vector<std::string>& more = {}) {
  std::vector<std::string> overrides = {
      "task=polychromic",
      "run.name=small",
      "run.dir=" + dir.string(),
      "hf.model=" + (answers_folder() / "model").string(),
      "hf.weights=random",
      "hf.tokenizer=" + (answers_folder() / "data").string(),
      "data.train=" + (answers_folder() / "data").string(),
      "chat.template=plain",
      "chat.max_length=60",
      "polychromic.diversity_metric=bleu",
      "polychromic.n_generations=3",
      "polychromic.max_generation_length=8",
      "lora.r=4",
      "optim.name=adamw",
      "optim.lr=3e-3",
      "optim.warmup_steps=2",
      // What is compared are steps: no clipping, and a rate that stays.
      "optim.beta2=0.95",
      "optim.weight_decay=0.1",
      "optim.grad_clip=0",
      "optim.min_ratio=1",
      "train.global_batch_size=8",
      "train.steps=8",
      "train.log_every=4",
      "eval.max_samples=16",
      "runtime.device=cpu",
      "runtime.threads=1",
  };
  overrides.insert(overrides.end(), more.begin(), more.end());
  config::LoadedConfig loaded = config::load_config({}, overrides);
  config::validate(loaded);
  return loaded;
}

struct SmallPolychromic : SmallTraining<tasks::PolychromicTask> {
  explicit SmallPolychromic(const std::filesystem::path& dir, const std::vector<std::string>& more = {},
                            const std::shared_ptr<parallel::Comm>& comm = nullptr)
      : SmallTraining(small_polychromic_config(dir, more), dir, comm) {}
};

}  // namespace hrm::testing
