// The row of task=polychromic.
#include "tasks/causal/spec.h"

#include <algorithm>

#include "hrm/base/error.h"
#include "hrm/base/log.h"
#include "hrm/data/chat_open.h"
#include "hrm/parallel/tensor_across.h"
#include "hrm/tasks/causal_inference.h"
#include "hrm/tasks/polychromic.h"
#include "tasks/causal/plan.h"
#include "tasks/specs.h"
#include "tasks/task_settings.h"

namespace hrm::tasks {
namespace {

std::unique_ptr<Task> make_polychromic(const config::Config& config, const Runtime& runtime,
                                       std::shared_ptr<parallel::Comm> comm) {
  return std::make_unique<PolychromicTask>(config, runtime, std::move(comm));
}

std::unique_ptr<Task> make_cut_polychromic(const config::Config& config, const Runtime& runtime,
                                           std::shared_ptr<parallel::Comm> comm,
                                           std::shared_ptr<parallel::Comm> tensor) {
  return std::make_unique<PolychromicTask>(config, runtime, std::move(comm), std::move(tensor));
}

std::vector<std::string> settings_of_earlier(const checkpoint::CheckpointMeta& meta,
                                             const std::vector<std::string>& overrides) {
  return data::settings_of_earlier_chat(meta.config_json, meta.info, overrides);
}

// A run keeps its template, its BOS and whether it reads tools. An earlier version may have guessed the template, and
// the run keeps that name.
void keep_chat(config::LoadedConfig& loaded, const config::Config& before, const std::string& origin) {
  const config::ChatConfig& then = before.chat;
  config::ChatConfig& now = loaded.config.chat;
  const auto keep = [&](const char* key, auto& mine, const auto& theirs) {
    if (mine == theirs) return;
    mine = theirs;
    log::info("chat         ", key, "=", theirs, ", as '", origin, "' was trained");
  };
  if (now.template_name == config::ChatTemplateKind::automatic)
    keep("chat.template", now.template_name, then.template_name);
  const bool plain = now.template_name == config::ChatTemplateKind::plain;
  if (plain && loaded.by_default("chat.bos")) keep("chat.bos", now.bos, then.bos);
  if (loaded.by_default("chat.tools_field")) keep("chat.tools_field", now.tools_field, then.tools_field);
}

// Of the prompts in data.train; of those of a run's own splits only the training ones.
PromptTokens prompts_of_data(const config::Config& config) {
  const HfModelConfig facts = read_hf_config(config.hf.model);
  const data::ChatEncoder encoder = open_causal_tokenizer(config, facts);
  const data::ChatSides sides = open_chat_data(config, encoder, /*need_response=*/config.grpo.start_step != 1);
  int64_t sum = 0;
  PromptTokens tokens;
  for (const int64_t example : sides.train.examples) {
    const auto length =
        static_cast<int64_t>(sides.train.dataset->examples()[static_cast<size_t>(example)].prompt_ids.size());
    sum += length;
    tokens.longest = std::max(tokens.longest, length);
  }
  const auto count = static_cast<int64_t>(sides.train.examples.size());
  require(count > 0, ExitCode::data, sides.train.dataset->origin(), ": no example to train on");
  tokens.mean = (sum + count / 2) / count;
  return tokens;
}

// Of hf.model only config.json is read, and data only for the length of the prompts that are answered.
PlannedModel plan_polychromic(const config::Config& config, const PlanData& data) {
  require(data.vocab_size == 0, ExitCode::usage, "--vocab-size is of models that have no vocabulary yet; that of '",
          config.hf.model, "' is in its config.json, leave it out");
  PromptTokens prompts{.mean = data.seq_len, .longest = data.seq_len};
  const bool samples = PolychromicPlan(config, 1).most_samples() > 0;
  require(
      samples || data.seq_len == 0, ExitCode::usage,
      "--seq-len is the length of prompts that are answered, and this configuration samples no answers; rows are as "
      "long as chat.max_length says, leave it out");
  if (samples && data.seq_len == 0) {
    require(!config.data.train.empty(), ExitCode::usage,
            "data.train is empty; give data, or the length of a prompt in tokens with --seq-len");
    prompts = prompts_of_data(config);
  }
  return {std::make_shared<CausalPlan>(config, prompts)};
}

// The model of hf.model, with its weights or with random ones. As in `generate`, an adapter is merged.
std::shared_ptr<models::LanguageModel> timed_causal_writer(const config::Config& config, const Runtime& runtime,
                                                           const TimedRows& rows,
                                                           std::shared_ptr<parallel::Comm> tensor) {
  require(rows.vocabulary == 0, ExitCode::usage, "--vocab-size is of models that have no vocabulary yet; that of '",
          config.hf.model, "' is in its config.json, leave it out");
  const int64_t positions = rows.prompt + rows.new_tokens,
                most = read_hf_config(config.hf.model).max_position_embeddings;
  require(positions <= most, ExitCode::usage, "rows of ", positions, " tokens are longer than the model of '",
          config.hf.model, "' was made for (max_position_embeddings = ", most, "); make --prompt or --new smaller");
  const auto lm =
      std::make_shared<CausalLm>(open_frozen_lm(config, runtime, positions, parallel::across_of(std::move(tensor))));
  if (lm->lora) {
    lm->lora->merge();
    lm->lora->set_mode(nn::LoraMode::merged);
  }
  return {lm, lm->model.get()};
}

}  // namespace

const TaskSpec& polychromic_spec() {
  static const TaskSpec spec{.settings = &config::polychromic_settings(),
                             .make = make_polychromic,
                             .make_cut = make_cut_polychromic,
                             .model_name = [](const config::Config& config) { return config.hf.model; },
                             .settings_of_earlier = settings_of_earlier,
                             .keep_settings = keep_chat,
                             .evaluate = evaluate_causal,
                             .samples_answers = [](const config::Config& config) { return config.eval.answers > 0; },
                             .export_as = export_causal,
                             .open_writer = open_causal_writer,
                             .has_adapter = [](const config::Config& config) { return config.lora.r > 0; },
                             .base_key = "hf.model",
                             .is_foreign = is_model_folder,
                             .foreign_config = model_folder_config,
                             .plan = plan_polychromic,
                             .timed_writer = timed_causal_writer};
  return spec;
}

}  // namespace hrm::tasks
