#include "tasks/causal/plan.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <string>

#include "hrm/base/error.h"
#include "hrm/base/text.h"
#include "hrm/models/decoder_lm.h"
#include "hrm/objectives/language.h"
#include "hrm/ops/moe.h"
#include "hrm/ops/weight8.h"
#include "hrm/tasks/fp8_blocks.h"
#include "hrm/tasks/polychromic_answers.h"
#include "hrm/tasks/polychromic_metrics.h"
#include "hrm/tasks/polychromic_rewards.h"
#include "hrm/tasks/prefix_sharing.h"
#include "hrm/tasks/reduce_maxima.h"
#include "tasks/causal/group_defaults.h"

namespace hrm::tasks {
namespace {

// "model.layers.12.mlp.down_proj.weight" -> 12 and "mlp.down_proj.weight"; -1 for what is in no layer.
std::pair<int64_t, std::string> in_layer(const std::string& name) {
  static const std::string begin = "model.layers.";
  if (!name.starts_with(begin)) return {-1, name};
  const size_t dot = name.find('.', begin.size());
  return {std::stoll(name.substr(begin.size(), dot - begin.size())), name.substr(dot + 1)};
}

PlannedLinear* linear_of(PlannedLayer& layer, const std::string& name) {
  if (name.starts_with("self_attn.qkv_proj.")) return &layer.qkv;
  if (name.starts_with("self_attn.o_proj.")) return &layer.o;
  if (name.starts_with("mlp.gate_up_proj.")) return &layer.gate_up;
  if (name.starts_with("mlp.down_proj.")) return &layer.down;
  if (name.starts_with("mlp.gate_up.")) return &layer.gate_up;
  if (name.starts_with("mlp.down.")) return &layer.down;
  if (name == "mlp.router.weight") return &layer.router;
  return nullptr;
}

bool in_fp8(const config::Config& config) {
  return config.precision.blocks == config::BlockPrecision::fp8;
}

bool needs_encoder(const config::Config& config, const PolychromicPlan& plan) {
  const bool rewarded = plan.grpo_from > 0;
  const bool measures = plan.samples_for_diversity || (rewarded && rewards_need_diversity(config.grpo));
  return (measures || (rewarded && rewards_need_embeddings(config.grpo))) &&
         config.polychromic.diversity_metric == config::DiversityMetric::semantic;
}

PlannedEncoder planned_encoder(const std::string& folder) {
  const HfBertConfig c = read_bert_config(folder);
  const double w = number(c.hidden_size), inner = number(c.intermediate_size);
  const double tables = w * number(c.vocab_size + c.max_position_embeddings + c.type_vocab_size);
  const double of_layer = 4 * (w * w + w) + 2 * w * inner + inner + w + 4 * w;
  return {.parameters = tables + 2 * w + number(c.layers) * of_layer, .of_tokens = tables};
}

}  // namespace

bool multiplies_frozen_in_8_bits(const PlanInput& in) {
  const config::HfConfig& hf = in.config.hf;
  return hf.quantize == config::Quantization::fp8 && hf.fp8_products && element_size(in.config) == 2 &&
         in.gpu.capability >= 90;
}

const CausalPlan& causal_plan(const PlanInput& in) {
  return dynamic_cast<const CausalPlan&>(*in.model);
}

std::vector<CausalPass> causal_passes(const PlanInput& in, PolychromicKind kind, int64_t micro, int64_t prompt) {
  using config::SharedPrompts;
  config::Config config = in.config;
  config.train.micro_batch_size = micro;
  const PolychromicPlan plan(config, in.data_ranks());
  const int64_t most = config.chat.max_length - 1, T = plan.padded(most), rows = plan.answers(kind);
  const CausalPass responses{
      .tokens = number(micro * T), .rows = number(micro), .length = number(T), .response_labels = number(micro * T)};
  if (kind != PolychromicKind::rewards && !plan.learns_from_answers(kind)) return {responses};

  const int64_t new_tokens = plan.tokens(kind), longest = prompt + new_tokens - 1;
  const int64_t room = config.hf.positions > 0 ? config.hf.positions : most + plan.most_tokens();
  const int64_t W = answer_width(longest, room, config.chat.buckets, plan.row_multiple);
  const SharedPrompts share = config.polychromic.share_prompts;
  const bool joins = share == SharedPrompts::responses && kind == PolychromicKind::diversity && !config.chat.packing &&
                     !(config.lora.r > 0 && config.lora.dropout > 0);
  const int64_t labelled = rows * new_tokens;
  const int64_t tokens = rows * (new_tokens - 1) + (joins ? 0 : plan.prompts(kind) * prompt);
  const int64_t shared = share == SharedPrompts::off ? 0 : PrefixSharing::capacity(std::max(tokens, labelled), rows, W);
  CausalPass answers{.loss = CausalPass::Loss::answers,
                     .tokens = number(shared > 0 ? shared : rows * W),
                     .answer_rows = number(rows),
                     .answer_length = number(W),
                     .shared = shared > 0,
                     .answer_labels = number(shared > 0 ? shared : rows * W)};
  if (kind == PolychromicKind::rewards) {
    CausalPass reference = answers;
    reference.recorded = false;
    answers.logits_twice = true;
    if (config.grpo.beta == 0) return {answers};
    return {reference, answers};
  }
  if (!joins || shared == 0) return {responses, answers};
  answers.loss = CausalPass::Loss::both;
  answers.tokens += responses.tokens;
  answers.rows = responses.rows;
  answers.length = responses.length;
  answers.response_labels = responses.response_labels;
  return {answers};
}

StepShares step_shares(const config::Config& config, const PolychromicPlan& plan) {
  StepShares shares;
  const int64_t steps = config.train.steps;
  double before = 1;  // of the steps, those before GRPO
  if (plan.grpo_from == 1 || (plan.grpo_from > 1 && steps == 0)) {
    before = 0;
  } else if (plan.grpo_from > 1) {
    before = number(std::min(plan.grpo_from - 1, steps)) / number(steps);
  }
  shares.rewards = 1 - before;
  shares.samples_rewards = shares.rewards / number(plan.reward_updates);
  if (plan.samples_for_diversity) shares.diversity = before / number(plan.every);
  shares.responses = before - shares.diversity;
  return shares;
}

CausalPlan::CausalPlan(const config::Config& config, const PromptTokens& prompts) : prompts_(prompts) {
  const CausalLm lm = outline_causal_lm(config);
  facts_ = lm.facts;
  name_ = cat(facts_.model_type, " of ", config.hf.model,
              config.lora.r > 0 ? cat(", adapter of rank ", config.lora.r) : std::string());
  positions_ = config.chat.max_length - 1;
  cache_positions_ = causal_positions(config, facts_);
  matrix_elements_ = matrix_elements(lm);
  read_layers(lm, config.precision);
  const PolychromicPlan plan(config, 1);
  require(prompts.longest <= positions_, ExitCode::usage, "prompts of ", prompts.longest,
          " tokens leave no room for a response in chat.max_length = ", config.chat.max_length,
          "; make --seq-len smaller, or chat.max_length larger");
  if (needs_encoder(config, plan)) encoder_ = planned_encoder(config.polychromic.diversity_encoder_model);
}

void CausalPlan::read_layers(const CausalLm& lm, const config::PrecisionConfig& precision) {
  layers_.resize(static_cast<size_t>(facts_.layers));
  std::map<std::string, at::Tensor> parameters;
  for (const auto& item : lm.model->named_parameters()) parameters[item.key()] = item.value();
  for (const auto& [name, tensor] : parameters) {
    const auto [index, rest] = in_layer(name);
    const bool of_experts = rest == "mlp.gate_up.weight" || rest == "mlp.down.weight";
    if (of_experts && !tensor.requires_grad()) {
      frozen_experts_ += number(tensor.numel());
    } else if (tensor.scalar_type() != at::kFloat) {
      largest_frozen_ = std::max(largest_frozen_, number(tensor.numel()));
    }
    if (index < 0) {
      const bool head = name.ends_with("lm_head.weight") || (facts_.tied && name.ends_with("embed_tokens.weight"));
      if (head) trains_head_ = trains_head_ || tensor.requires_grad();
      if (name.ends_with("embed_tokens.weight")) trains_embedding_ = trains_embedding_ || tensor.requires_grad();
      continue;
    }
    if (tensor.dim() < 2) {  // norms, biases
      const bool of_adapter = name.find(".lora.") != std::string::npos;
      trains_embedding_ = trains_embedding_ || (tensor.requires_grad() && !of_adapter);
      continue;
    }
    PlannedLinear* const linear = linear_of(layers_[static_cast<size_t>(index)], rest);
    require(linear != nullptr, ExitCode::usage, "plan does not know the layer '", name, "' of '", facts_.model_type,
            "'; 'hrm_train bench step' measures a step of it");
    // The weights of all experts stand one below the other.
    const bool stacked = rest.starts_with("mlp.gate_up.") || rest.starts_with("mlp.down.");
    const int64_t rows = tensor.size(0) / (stacked ? facts_.experts.count : 1);
    if (rest.ends_with("lora_A.weight")) {
      linear->targets = number(rows / lm.lora->options().rank);
    } else if (rest.ends_with("lora_B.weight")) {
      linear->adapted = number(rows);
    } else {
      linear->in = number(tensor.size(1));
      linear->out = number(rows);
      linear->trained = tensor.requires_grad();
    }
  }
  if (precision.blocks == config::BlockPrecision::fp8) {
    for (const nn::NamedLinear& layer : fp8_layers(*lm.model, precision)) {
      const auto [index, rest] = in_layer(layer.name + ".weight");
      linear_of(layers_[static_cast<size_t>(index)], rest)->fp8 = true;
    }
  }
  for (const nn::QuantizedLayer& layer : nn::quantized_layers(*lm.model)) {
    const double values = number(layer.linear->weight().numel());
    quantized_values_ += values;
    largest_quantized_ = std::max(largest_quantized_, values);
    const at::Tensor& weight = layer.linear->weight();
    quantized_bytes_ += number(nn::stored_bytes(layer.linear->format(), weight.size(0), weight.size(1)));
    reads_stored_ = layer.linear->format() != nn::WeightFormat::nf4;
  }
  if (quantized_values_ > 0) return;
  for (const PlannedLayer& layer : layers_) {
    const double copies = layer.has_experts() ? number(facts_.experts.count) : 1;
    for (const PlannedLinear* linear : {&layer.qkv, &layer.o}) {
      if (linear->targets > 0) merged_values_ += linear->in * linear->out;
    }
    for (const PlannedLinear* linear : {&layer.gate_up, &layer.down}) {
      if (linear->targets > 0) merged_values_ += copies * linear->in * linear->out;
    }
  }
}

bool CausalPlan::decodes_quantized(double rows) const {
  return reads_stored_ && rows <= number(ops::kWeight8Rows);
}

double CausalPlan::block_values() const {
  return read_values(1);
}

double CausalPlan::read_values(double tokens) const {
  double values = 0;
  for (const PlannedLayer& layer : layers_) {
    const double read =
        layer.has_experts() ? std::min(number(facts_.experts.count), tokens * number(facts_.experts.top_k)) : 1;
    for (const PlannedLinear* linear : {&layer.qkv, &layer.o, &layer.router}) values += linear->in * linear->out;
    for (const PlannedLinear* linear : {&layer.gate_up, &layer.down}) values += read * linear->in * linear->out;
  }
  return values;
}

double CausalPlan::expert_rows(double tokens) const {
  return number(ops::moe_rows(static_cast<int64_t>(tokens), facts_.experts.top_k, facts_.experts.count));
}

std::shared_ptr<const CausalPlan> CausalPlan::part(int64_t parts) const {
  auto part = std::make_shared<CausalPlan>(*this);
  const double by = number(parts);
  part->parts_ = parts;
  part->facts_.heads /= parts;
  part->facts_.kv_heads /= parts;
  part->facts_.vocab_size = (facts_.vocab_size + parts - 1) / parts;
  for (PlannedLayer& layer : part->layers_) {
    for (PlannedLinear* rows : {&layer.qkv, &layer.gate_up}) {
      rows->out /= by;
      rows->adapted /= by;
    }
    for (PlannedLinear* columns : {&layer.o, &layer.down}) columns->in /= by;
  }
  return part;
}

ModelOutline CausalPlan::outline(const config::Config& config) const {
  return outline_part(config, nullptr);
}

ModelOutline CausalPlan::outline_part(const config::Config& config,
                                      const std::shared_ptr<const nn::TensorAcross>& across) const {
  require(
      !across || PolychromicPlan(config, 1).most_samples() == 0, ExitCode::usage, "plan counts no completions that ",
      "the parts of a model sample together (parallel.tensor = ", config.parallel.tensor,
      "); plan training on responses alone (polychromic.objective=none, grpo.start_step=0), or set parallel.tensor ",
      "to 1");
  const CausalLm lm = outline_causal_lm(config, across);
  const PolychromicPlan plan(config, 1);
  std::vector<std::string> rewards;
  if (plan.grpo_from > 0) {
    for (const auto& [name, weight] : weighted_reward_names(config.grpo.rewards)) rewards.push_back(name);
    if (config.grpo.diversity_weight > 0) rewards.emplace_back("diversity");
  }
  PlanInput one;
  one.config = config;
  one.config.parallel.tensor = 1;
  const StepShares shares = step_shares(config, plan);
  const double passes = lm.lora ? 2 : 3;  // as PolychromicTask::count_flops
  double tokens = 0;
  const auto add = [&](PolychromicKind kind, double share) {
    if (share == 0) return;
    for (const CausalPass& pass : causal_passes(one, kind, plan.micro_rows, prompts_.mean)) {
      tokens += share * pass.tokens * (pass.recorded ? passes : 1);
    }
  };
  add(PolychromicKind::responses, shares.responses);
  add(PolychromicKind::diversity, shares.diversity);
  add(PolychromicKind::rewards, shares.rewards);
  const bool measures = plan.samples_for_diversity || (plan.grpo_from > 0 && rewards_need_diversity(config.grpo));
  int64_t fp8 = 0, fp8_transposed = 0, largest_fp8 = 0;
  if (in_fp8(config)) {
    for (const nn::NamedLinear& layer : fp8_layers(*lm.model, config.precision)) {
      const int64_t values = layer.linear->weight().numel();
      fp8 += values;
      if (values < nn::kFp8WideWeight) fp8_transposed += values;
      largest_fp8 = std::max(largest_fp8, values);
    }
  }
  const std::vector<std::string> of_steps = in_fp8(config) ? fp8_metric_names(*lm.model) : std::vector<std::string>();
  return {.model = lm.model,
          .parameters = &lm.model->parameter_set(),
          .blocks_run_once = config.parallel.zero == 3,  // nothing is sampled then
          .unmarked_groups = unmarked_groups(),
          .group_defaults = causal_group_defaults(),
          .flops_per_sample = 2 * matrix_elements_ * tokens / number(plan.micro_rows),
          .fp8_parameters = fp8,
          .fp8_transposed = fp8_transposed,
          .largest_fp8 = largest_fp8,
          .fp8_copies = plan.most_samples() > 0,
          .metric_sums = static_cast<int64_t>(PolychromicMetrics(plan, rewards, measures, of_steps).names().size())};
}

// Blocks up to the first one that is trained.
int64_t CausalPlan::unmarked_groups() const {
  if (trains_embedding_) return 0;
  const auto first =
      std::find_if(layers_.begin(), layers_.end(), [](const PlannedLayer& layer) { return layer.trains(); });
  return std::min<int64_t>(first - layers_.begin() + 1, static_cast<int64_t>(layers_.size()));
}

void CausalPlan::rehearse_pass(const PlanInput& in, const ModelOutline& outline, int64_t micro_batches_left,
                               StepRehearsal& step) const {
  using Moment = StepPlace::Moment;
  auto& model = dynamic_cast<models::DecoderLm&>(*outline.model);
  const CausalPass pass = causal_passes(in, PolychromicKind::responses, in.micro_samples(), prompts_.mean).front();
  // Documents hide positions, which changes nothing of what travels.
  const at::Tensor ids = at::empty({static_cast<int64_t>(pass.rows), static_cast<int64_t>(pass.length)},
                                   at::device(at::kMeta).dtype(at::kLong));
  const double blocks = share_of_blocks(in, pass);
  const models::LanguageOutput output = model.forward({.ids = ids});
  step.note_work("activations", Moment::in_forward, 0, blocks, micro_batches_left);
  const objectives::LanguageLoss loss = objectives::language_loss(
      model, output, ids, {.chunk = in.config.objective.chunk}, at::empty({}, ids.options().dtype(at::kFloat)));
  step.note_work("loss", Moment::in_forward, blocks, 1, micro_batches_left);
  loss.loss.backward();
  step.note_work("activations", Moment::in_backward, 0, 1, micro_batches_left);
}

// PolychromicTask::load_batch of a step that samples, then PolychromicLoss::count_tokens.
void CausalPlan::rehearse_begin(const PlanInput& in, StepRehearsal& step) const {
  const PolychromicPlan plan(in.config, in.data_ranks());
  const StepShares shares = step_shares(in.config, plan);
  const auto reduce = [&](at::IntArrayRef sizes, at::ScalarType dtype) {
    step.comm().all_reduce(at::empty(sizes, at::device(at::kMeta).dtype(dtype)));
  };
  const auto written = [&](bool shares_prompts) {
    reduce({}, at::kLong);  // the longest row
    if (shares_prompts) reduce({}, at::kLong);
  };
  const bool shared = in.config.polychromic.share_prompts != config::SharedPrompts::off;
  if (shares.diversity > 0) {
    written(shared && plan.diversity_has_gradient);
    reduce({1}, at::kDouble);
    if (in.config.polychromic.normalize_advantages) reduce({}, at::kDouble);
  } else if (shares.rewards > 0) {
    written(shared);
    reduce({plan.rows * in.data_ranks(), plan.reward_samples}, at::kDouble);
  }
  if (shares.diversity + shares.rewards > 0) step.note("answers", StepExchange::Moment::before_forward);
  reduce({2}, at::kFloat);
  step.note("tokens", StepExchange::Moment::before_forward);
}

// Fp8Blocks::update_scales.
void CausalPlan::rehearse_end(const PlanInput& in, const ModelOutline& outline, int64_t /*own*/,
                              StepRehearsal& step) const {
  if (!in_fp8(in.config)) return;
  const auto layers = static_cast<int64_t>(fp8_layers(*outline.model, in.config.precision).size());
  reduce_maxima(step.comm(), at::empty({2 * layers}, at::device(at::kMeta).dtype(at::kFloat)));
  step.note("fp8 maxima", StepExchange::Moment::after_backward);
}

}  // namespace hrm::tasks
