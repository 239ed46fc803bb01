// Defaults and rules of task=polychromic. Free of torch.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "hrm/base/text.h"
#include "tasks/task_settings.h"

namespace hrm::config {
namespace {

using Chosen = TaskDefault::Chosen;

constexpr int64_t kWarmup = 20;

// The rewards that grpo.rewards lists, without their weights.
std::vector<std::string> reward_names(const Config& c) {
  std::vector<std::string> names = split_list(c.grpo.rewards);
  for (std::string& name : names) name = name.substr(0, name.find('*'));
  return names;
}

void check_polychromic(const Checker& check, const Config& c) {
  const PolychromicConfig& p = c.polychromic;
  const GrpoConfig& g = c.grpo;
  const auto at = [&](const char* key) { return check.at(key); };
  check.require(!c.hf.model.empty(), at("hf.model"),
                " is empty; set it to a folder with config.json, as transformers saves models");
  check.require(c.lora.adapter.empty() || c.lora.r > 0, at("lora.adapter"), ", but ", at("lora.r"),
                " means that there is none; set lora.r to the adapter's, or leave lora.adapter out");
  check.require(c.chat.template_name == ChatTemplateKind::custom ||
                    (c.chat.prompt_template.empty() && c.chat.response_template.empty()),
                at("chat.prompt_template"), " and ", at("chat.response_template"),
                " belong to the template custom, not to ", at("chat.template"),
                "; leave them out, or set chat.template to custom");
  check.require(
      c.chat.learn == LearnedTurns::response || (p.objective == PolychromicObjective::none && g.start_step == 0),
      at("chat.learn"),
      " is for supervised fine-tuning; set it to response, or polychromic.objective to none and "
      "grpo.start_step to 0");
  check.require(c.chat.val_share + c.chat.test_share < 1, at("chat.val_share"), " and ", at("chat.test_share"),
                " leave nothing to train on; make them smaller");
  check.require(!c.chat.stratify || !c.chat.value_field.empty(), at("chat.stratify"), " needs ", at("chat.value_field"),
                "; name the member with the number");
  check.require(p.objective != PolychromicObjective::marginal || p.subset_size < p.n_generations,
                at("polychromic.subset_size"), " is not fewer than ", at("polychromic.n_generations"), "; set it to ",
                p.n_generations - 1, " or less");
  const bool samples_for_diversity = p.objective != PolychromicObjective::none && g.start_step != 1;
  check.require(!samples_for_diversity || p.objective != PolychromicObjective::marginal ||
                    p.diversity_metric == DiversityMetric::semantic,
                at("polychromic.objective"), " measures distances of embeddings, which ",
                at("polychromic.diversity_metric"),
                " has not; set polychromic.diversity_metric to semantic, or polychromic.objective to score_function");
  check.require(!samples_for_diversity || p.objective != PolychromicObjective::marginal ||
                    p.performance_mode != PerformanceMode::safe ||
                    p.subset_size < std::min(p.n_generations, kSafeAnswers),
                at("polychromic.subset_size"), " is not fewer than the ", kSafeAnswers, " answers of ",
                at("polychromic.performance_mode"), "; set it to 2");
  check.require(c.parallel.zero != 2, at("parallel.zero"),
                " sends gradients on when a block was gone through once, but ", at("task"),
                " goes through it twice; set parallel.zero to 1 or 0");
  if (c.parallel.tensor > 1) {
    check.require(c.hf.quantize != Quantization::nf4, at("parallel.tensor"),
                  " cuts weights whose scales are those of rows, but ", at("hf.quantize"),
                  " shares scales between elements of several parts; set hf.quantize to int8 or fp8, or "
                  "parallel.tensor to 1");
    check.require(!c.lora.dora, at("parallel.tensor"), " gives each rank a part of the rows that ", at("lora.dora"),
                  " norms; set parallel.tensor to 1, or lora.dora to false");
  }
  check.require(c.parallel.zero != 3 || (p.objective == PolychromicObjective::none && g.start_step == 0),
                at("parallel.zero"), " gathers each block when a pass needs it, but sampling writes completions on ",
                "every rank by itself; set parallel.zero to 1, or train on responses alone with ",
                "polychromic.objective=none and grpo.start_step=0");
  const bool whole_run_grpo = g.start_step == 1;
  if (p.objective != PolychromicObjective::none && !whole_run_grpo && p.diversity_metric == DiversityMetric::semantic) {
    check.require(
        !p.diversity_encoder_model.empty(), at("polychromic.diversity_metric"), " needs a sentence encoder, but ",
        at("polychromic.diversity_encoder_model"),
        "; set it to a folder, or polychromic.diversity_metric to bleu or distinct, or polychromic.objective to "
        "none");
  }
  if (g.start_step > 0) {
    check.require(!g.rewards.empty() || g.diversity_weight > 0, at("grpo.start_step"),
                  " begins without rewards: ", at("grpo.rewards"), "; set it to e.g. answer");
    check.require(g.beta == 0 || c.lora.r > 0, at("grpo.beta"),
                  " measures the distance from the model without its adapter, but ", at("lora.r"),
                  " trains without one; set lora.r to 16, or grpo.beta to 0");
    check.require(g.beta == 0 || c.lora.modules_to_save.empty(), at("grpo.beta"),
                  " measures the distance from the model before training, but ", at("lora.modules_to_save"),
                  " changes some of its weights in place; leave that out, or set grpo.beta to 0");
    for (const char* reward : {"heuristic", "learned", "relevance"}) {
      const std::vector<std::string> listed = reward_names(c);
      const bool is_named = std::find(listed.begin(), listed.end(), reward) != listed.end();
      check.require(
          !is_named || (p.diversity_metric == DiversityMetric::semantic && !p.diversity_encoder_model.empty()),
          at("grpo.rewards"), ": the reward ", reward, " compares embeddings, but ", at("polychromic.diversity_metric"),
          " and ", at("polychromic.diversity_encoder_model"),
          "; set them to semantic and a sentence encoder's folder, or leave the reward out");
    }
    const std::vector<std::string> rewards = reward_names(c);
    const bool rewards_diversity = std::find(rewards.begin(), rewards.end(), "diversity") != rewards.end();
    check.require((!rewards_diversity && g.diversity_weight == 0) || p.diversity_metric != DiversityMetric::semantic ||
                      !p.diversity_encoder_model.empty(),
                  at(rewards_diversity ? "grpo.rewards" : "grpo.diversity_weight"), " rewards diversity, and ",
                  at("polychromic.diversity_metric"), " needs a sentence encoder, but ",
                  at("polychromic.diversity_encoder_model"),
                  "; set it to a folder, or polychromic.diversity_metric to bleu or distinct, or leave the reward out");
    check.require(g.delta == 0 || g.delta > 1 + (g.epsilon_high > 0 ? g.epsilon_high : g.epsilon), at("grpo.delta"),
                  " is not above 1 + epsilon_high; set it to e.g. 4, or to 0");
  } else {
    for (const std::string& key : differing_keys(c, Config())) {
      check.require(!key.starts_with("grpo.") || check.by_default(key), check.at(key.c_str()), " does nothing while ",
                    at("grpo.start_step"), "; set grpo.start_step to 1 for a run of GRPO, or leave it out");
    }
  }
}

void check_rewards(const Checker& check, const Config& c) {
  const GrpoConfig& g = c.grpo;
  if (g.start_step == 0) return;
  check.require(c.train.steps == 0 || g.start_step <= c.train.steps, check.at("grpo.start_step"),
                " is behind the last step, for ", check.at("train.steps"),
                "; set it to a step of the run, or to 0 (no GRPO)");
  const std::vector<std::string> names = reward_names(c);
  const auto listed = [&](const char* name) { return std::find(names.begin(), names.end(), name) != names.end(); };
  check.require(!listed("format") || !g.reward_pattern.empty(), check.at("grpo.rewards"),
                ": the reward format needs grpo.reward_pattern, which is empty; set it to the regular expression that "
                "the whole answer must match");
  check.require(
      !listed("learned") || !g.reward_head.empty(), check.at("grpo.rewards"),
      ": the reward learned needs grpo.reward_head, which is empty; set it to the network's safetensors file");
  constexpr std::pair<const char*, const char*> kReaders[] = {
      {"grpo.reward_pattern", "format"}, {"grpo.reward_first_line", "answer"}, {"grpo.reward_head", "learned"}};
  for (const auto& [key, reward] : kReaders) {
    if (listed(reward)) continue;
    check.refuse_unread({key}, "grpo.rewards", cat("does not list the reward ", reward, " that reads it"),
                        cat("add ", reward, " to grpo.rewards"));
  }
}

// What several keys decide together; conditions on one key stand with the fields.
void check_unread_answers(const Checker& check, const Config& c) {
  const PolychromicConfig& p = c.polychromic;
  if (!c.data.test.empty() && c.chat.val_share > 0) {
    check.refuse_unread({"chat.val_share"}, "data.test", "is what is evaluated");
  }
  if (c.grpo.start_step == 1) {
    if (p.objective != PolychromicObjective::none) {
      check.refuse_unread({"polychromic.objective"}, "grpo.start_step", "leaves no step to it",
                          "set grpo.start_step to a later step");
    }
  } else if (c.grpo.start_step == 0) {
    if (p.objective == PolychromicObjective::none) {
      check.refuse_unread({"polychromic.generation_batch", "polychromic.share_prompts"}, "polychromic.objective",
                          "samples no answers", "set polychromic.objective to score_function");
    }
    if (p.objective == PolychromicObjective::compat) {
      check.refuse_unread({"polychromic.share_prompts"}, "polychromic.objective", "learns from no answers",
                          "set polychromic.objective to score_function");
    }
  }
}

void check_causal_fake_quantize(const Checker& check, const Config& c) {
  if (c.precision.fake_quantize == FakeQuantization::none) return;
  check.require(c.hf.quantize == Quantization::none, check.at("precision.fake_quantize"),
                " is for weights that are trained, and ", check.at("hf.quantize"),
                " for frozen ones; set one of them to none");
  check.require(c.lora.r == 0, check.at("precision.fake_quantize"), " is for weights that are trained, but ",
                check.at("lora.r"), " freezes them beside an adapter; set lora.r to 0, or precision.fake_quantize to ",
                "none (hf.quantize stores frozen weights in 8 bits)");
}

void check_causal(const Checker& check) {
  const Config& c = check.loaded().config;
  check_causal_fake_quantize(check, c);
  check_polychromic(check, c);
  check_fp8_blocks(check);
  if (!c.hf.fp8_products) {
    check.refuse_unread({"hf.fp8_transposed"}, "hf.fp8_products", "has no products in 8 bits",
                        "set hf.fp8_products to true");
  }
  check.require(c.precision.blocks != BlockPrecision::fp8 || c.lora.r == 0, check.at("precision.blocks"),
                " trains all weights of the blocks, but ", check.at("lora.r"),
                " freezes them; set hf.quantize to fp8 for frozen weights in 8 bits and leave precision.blocks out, or "
                "set lora.r to 0");
}

void check_causal_run(const Checker& check) {
  check_rewards(check, check.loaded().config);
  check_unread_answers(check, check.loaded().config);
}

// The puzzles that ship with the project are no prompts.
std::optional<Chosen> no_prompts(const LoadedConfig&) {
  return Chosen{std::string(), ""};
}

std::optional<Chosen> lr(const LoadedConfig& loaded) {
  return Chosen{loaded.config.lora.r > 0 ? 2e-4 : 2e-5, ""};
}

std::optional<Chosen> warmup(const LoadedConfig& loaded) {
  const int64_t steps = loaded.config.train.steps;
  return Chosen{steps > 0 ? std::min(kWarmup, steps / 10) : kWarmup, ""};
}

auto always(Value value) {
  return [value](const LoadedConfig&) { return std::optional(Chosen{value, ""}); };
}

}  // namespace

// The defaults are for fine-tuning: those of the fields are for models that learn from scratch.
const TaskSettings& polychromic_settings() {
  static const TaskSettings row{
      .name = "polychromic",
      .help = "a causal language model (section hf) on prompts and responses, and on completions that it samples",
      .defaults = {{"data.train", no_prompts},
                   {"data.test", no_prompts},
                   {"optim.name", always(std::string("adamw")), "adamw"},
                   {"optim.lr", lr, "2e-4 with an adapter, 2e-5 where all weights are trained"},
                   {"optim.beta2", always(0.999), "0.999"},
                   {"optim.weight_decay", always(0.01), "0.01"},
                   {"optim.grad_clip", always(1.0), "1"},
                   {"optim.warmup_steps", warmup, "20, but no more than a tenth of train.steps"},
                   {"optim.min_ratio", always(0.1), "0.1"},
                   {"train.global_batch_size", always(int64_t{16}), "16"}},
      .data = TrainingData::records,
      .train_data = "a file of JSON lines with prompts and responses, or a folder of them",
      // Data that are split already bring their own, which only reading them shows.
      .test_data = "a file of JSON lines with prompts and responses, or a folder of them",
      .check = check_causal,
      .check_run = check_causal_run};
  return row;
}

}  // namespace hrm::config
