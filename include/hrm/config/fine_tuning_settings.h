#pragma once
// Sections of task=polychromic: a causal language model from a Hugging Face folder, its adapter, its data, and the use
// of its completions. Names and defaults follow PEFT's LoraConfig, TRL's GRPOConfig and the diversity settings of the
// polychromic trainer.

#include <cstdint>
#include <string>

#include "hrm/config/field.h"

namespace hrm::config {

inline const ReadWhen kWithAdapter{
    .key = "lora.r", .values = {"0"}, .why = "means no adapter", .way_out = "set lora.r to 16", .unless = true};
inline const ReadWhen kModelTemplate{
    "chat.template", {"auto", "model"}, "is not the model's own template", "set chat.template to model"};
inline const ReadWhen kSomeDiversity{
    .key = "grpo.start_step",
    .values = {"1"},
    .why = "leaves no step to polychromic.objective",
    .way_out = "set grpo.start_step to a later step (rewards have grpo.diversity_weight and settings of their own)",
    .unless = true};
inline const ReadWhen kSamplesAnswers{.key = "polychromic.objective",
                                      .values = {"none"},
                                      .why = "samples no answers for diversity",
                                      .way_out = "set polychromic.objective to score_function",
                                      .unless = true};
inline const ReadWhen kDiversityGradient{.key = "polychromic.objective",
                                         .values = {"compat"},
                                         .why = "has no gradient",
                                         .way_out = "set polychromic.objective to score_function",
                                         .unless = true};

// polychromic.performance_mode=safe samples at most this many completions.
inline constexpr int64_t kSafeAnswers = 3;

enum class PolychromicObjective { none, score_function, marginal, compat };
template <>
struct EnumNames<PolychromicObjective> {
  static constexpr const char* kNames[] = {"none", "score_function", "marginal", "compat"};
};

enum class HfWeights { load, random };
template <>
struct EnumNames<HfWeights> {
  static constexpr const char* kNames[] = {"load", "random"};
};

enum class Quantization { none, nf4, fp8, int8 };
template <>
struct EnumNames<Quantization> {
  static constexpr const char* kNames[] = {"none", "nf4", "fp8", "int8"};
};

// The model.
struct HfConfig {
  std::string model = "";
  HfWeights weights = HfWeights::load;
  std::string tokenizer = "";
  Quantization quantize = Quantization::none;
  bool fp8_products = true;
  bool fp8_transposed = false;
  int64_t positions = 0;
  bool recompute = false;

  template <class F>
  static void describe(F&& f) {
    f("model", &HfConfig::model, PathText{}, "",
      "folder of a causal language model that transformers saved (config.json, tokenizer.json, model.safetensors or "
      "its shards), of a family that docs/polychromic.md lists",
      Resume::free);
    f("weights", &HfConfig::weights, Choice<HfWeights>{}, "",
      "load = read the weights of hf.model; random = draw them by run.seed, to train from scratch or to time, where "
      "the folder needs only config.json");
    f("tokenizer", &HfConfig::tokenizer, PathText{}, "", "folder that holds tokenizer.json; empty = hf.model",
      Resume::free);
    f("quantize", &HfConfig::quantize, Choice<Quantization>{}, "",
      "how the frozen weights of the blocks' linear layers are stored: none = in the compute dtype; nf4 = as 4-bit "
      "NormalFloat with double quantisation (QLoRA), in a quarter of the memory but slower; fp8 = as e4m3, int8 = as "
      "integers, both with a scale for each output and in half of the memory. Training needs lora.r above 0 with them");
    f("fp8_products", &HfConfig::fp8_products, Flag{}, "",
      "multiply more than 32 rows with e4m3 weights in 8 bits, in both passes: activations and gradients are quantised "
      "with a scale for each row. GPUs of compute capability 9.0 or later do so for bf16 and fp16 if both sizes of "
      "the weight are multiples of 16; other products, and the CPU, dequantise the weight",
      Resume::free, ReadWhen{"hf.quantize", {"fp8"}, "has no weights in e4m3", "set hf.quantize to fp8"});
    f("fp8_transposed", &HfConfig::fp8_transposed, Flag{}, "",
      "keep e4m3 weights transposed, too: the backward pass of training reads them instead of transposing each weight "
      "in every step, for one more byte per weight",
      Resume::free, ReadWhen{"hf.quantize", {"fp8"}, "has no weights in e4m3", "set hf.quantize to fp8"});
    f("positions", &HfConfig::positions, IntRange{0, 1 << 20}, "tokens",
      "longest row that the model can hold, prompt and completion together; 0 = chat.max_length, or the prompt's part "
      "of it plus polychromic.max_generation_length");
    f("recompute", &HfConfig::recompute, Flag{}, "",
      "keep only each block's input for the backward pass (activation checkpointing)", Resume::free);
  }
};

// The adapter.
struct LoraConfig {
  int64_t r = 16;
  double alpha = 16;
  double dropout = 0;
  bool rslora = false;
  bool dora = false;
  std::string targets = "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj";
  std::string modules_to_save = "";
  std::string adapter = "";

  template <class F>
  static void describe(F&& f) {
    f("r", &LoraConfig::r, IntRange{0, 4096}, "",
      "rank of the adapters, beside frozen weights; 0 = no adapters, and all weights are trained");
    f("alpha", &LoraConfig::alpha, RealRange{0, 1e6}, "", "adapters are scaled by alpha / r", kWithAdapter);
    f("dropout", &LoraConfig::dropout, RealRange{0, 1, false, true}, "",
      "fraction of an adapter's inputs that is dropped in training", kWithAdapter);
    f("rslora", &LoraConfig::rslora, Flag{}, "", "scale adapters by alpha / sqrt(r) instead of alpha / r",
      kWithAdapter);
    f("dora", &LoraConfig::dora, Flag{}, "",
      "also train a magnitude for each output of an adapted layer (DoRA); steps are slower", kWithAdapter);
    f("targets", &LoraConfig::targets, AnyText{}, "",
      "layers that get an adapter, separated by commas: q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj, "
      "or whole names such as model.layers.0.mlp.up_proj. all-linear = all of them; pattern:REGEX = those whose whole "
      "name matches",
      kWithAdapter);
    f("modules_to_save", &LoraConfig::modules_to_save, AnyText{}, "",
      "modules that are trained whole beside the adapters, separated by commas: embed_tokens, lm_head, norms. A tied "
      "model then gets a head of its own",
      kWithAdapter);
    f("adapter", &LoraConfig::adapter, PathText{}, "",
      "PEFT folder of the same r and targets to start from; empty = start from an adapter that changes nothing");
  }
};

enum class ChatTemplateKind { automatic, model, chatml, llama3, plain, custom };
template <>
struct EnumNames<ChatTemplateKind> {
  static constexpr const char* kNames[] = {"auto", "model", "chatml", "llama3", "plain", "custom"};
};

enum class ChatBos { automatic, off };
template <>
struct EnumNames<ChatBos> {
  static constexpr const char* kNames[] = {"auto", "off"};
};

enum class LearnedTurns { response, turns };
template <>
struct EnumNames<LearnedTurns> {
  static constexpr const char* kNames[] = {"response", "turns"};
};

enum class ChatThinking { automatic, on, off };
template <>
struct EnumNames<ChatThinking> {
  static constexpr const char* kNames[] = {"auto", "on", "off"};
};

// Prompts and responses.
struct ChatConfig {
  ChatTemplateKind template_name = ChatTemplateKind::automatic;  // chat.template
  std::string template_entry = "";                               // chat.template_name
  std::string date = "";
  ChatBos bos = ChatBos::automatic;
  LearnedTurns learn = LearnedTurns::response;
  ChatThinking thinking = ChatThinking::automatic;
  std::string prompt_template = "";
  std::string response_template = "";
  std::string messages_field = "messages";
  std::string prompt_field = "prompt";
  std::string response_field = "response";
  std::string answers_field = "answers";
  std::string tools_field = "tools";
  std::string id_field = "";
  std::string value_field = "";
  std::string instruction = "";
  int64_t max_length = 512;
  double val_share = 0.1;
  double test_share = 0;
  bool stratify = false;
  bool deduplicate = false;
  bool packing = false;
  int64_t buckets = 4;
  int64_t pool_batches = 1;

  template <class F>
  static void describe(F&& f) {
    f("template", &ChatConfig::template_name, Choice<ChatTemplateKind>{}, "",
      "how prompt and response are framed: model = run the tokenizer folder's chat_template as transformers does; "
      "chatml, llama3; plain = add only EOS behind the response; custom = use prompt_template and response_template. "
      "auto = model if the folder has a template");
    f("template_name", &ChatConfig::template_entry, AnyText{}, "",
      "which of several named templates is used (template=model); empty = the one called default", kModelTemplate);
    f("date", &ChatConfig::date, AnyText{}, "",
      "date that templates which write today's date receive, e.g. 2026-11-25 (template=model); empty = today",
      Resume::free, kModelTemplate);
    f("learn", &ChatConfig::learn, Choice<LearnedTurns>{}, "",
      "response = learn the last answer of a record; turns = learn every answer that the template marks with {% "
      "generation %}. turns needs template=model and polychromic.objective=none",
      kModelTemplate);
    f("bos", &ChatConfig::bos, Choice<ChatBos>{}, "",
      "template=plain: auto = put BOS in front of a prompt if tokenizer.json's post-processor does; off = never",
      ReadWhen{"chat.template", {"plain"}, "puts BOS where its own texts have it", "set chat.template to plain"});
    f("thinking", &ChatConfig::thinking, Choice<ChatThinking>{}, "",
      "enable_thinking of a model's own template, where auto leaves it out. With chatml, off ends the prompt with an "
      "empty <think> block, and auto is off if the tokenizer has <think>",
      ReadWhen{
          "chat.template", {"auto", "model", "chatml"}, "knows no thinking", "set chat.template to model or chatml"});
    f("prompt_template", &ChatConfig::prompt_template, AnyText{}, "",
      "template=custom: text that holds {prompt} and {member of the record}, and may begin with {bos}");
    f("response_template", &ChatConfig::response_template, AnyText{}, "",
      "template=custom: text that holds {response}, and may end with {eos}");
    f("messages_field", &ChatConfig::messages_field, AnyText{}, "",
      "member of a record that holds a conversation: a list of role and content, or of from and value (ShareGPT). "
      "Without it and prompt_field, the only member with such a list is used, or instruction, input and output "
      "(Alpaca)");
    f("prompt_field", &ChatConfig::prompt_field, AnyText{}, "",
      "member that holds the prompt: a text, or the messages in front of the response");
    f("response_field", &ChatConfig::response_field, AnyText{}, "",
      "member that holds the response: a text or a message. The default also accepts completion");
    f("answers_field", &ChatConfig::answers_field, AnyText{}, "",
      "member that holds a list of all right answers, or the only one, for rewards and evaluation");
    f("tools_field", &ChatConfig::tools_field, AnyText{}, "",
      "member that lists the tools the assistant can call, which the template receives as tools (template=model); "
      "empty = read none");
    f("id_field", &ChatConfig::id_field, AnyText{}, "",
      "records with the same value here stay in the same split; empty = use the prompt's text");
    f("value_field", &ChatConfig::value_field, AnyText{}, "",
      "member that holds a number for chat.stratify, e.g. reply_likes",
      ReadWhen{"chat.stratify", {"true"}, "does not split by it", "set chat.stratify to true"});
    f("instruction", &ChatConfig::instruction, AnyText{}, "",
      "text that frames the user's prompt and may hold {member}, e.g. 'Reply to this tweet: {tweet}'; empty = only the "
      "prompt");
    f("max_length", &ChatConfig::max_length, IntRange{2, 1 << 20}, "tokens",
      "maximum length of prompt and response together. Longer responses are cut; prompts that leave no room are "
      "dropped and counted");
    f("val_share", &ChatConfig::val_share, RealRange{0, 1, false, true}, "",
      "fraction of the prompts of data.train that is kept for evaluation if data.test is empty");
    f("test_share", &ChatConfig::test_share, RealRange{0, 1, false, true}, "",
      "fraction of the prompts that neither training nor evaluation sees, kept for 'hrm_train eval'");
    f("stratify", &ChatConfig::stratify, Flag{}, "", "split each quarter of the records by value_field separately");
    f("deduplicate", &ChatConfig::deduplicate, Flag{}, "",
      "keep only the first of records with equal prompt and response");
    f("packing", &ChatConfig::packing, Flag{}, "",
      "put several whole examples into a row of max_length, each of which attends only to itself; not for GRPO. "
      "train.global_batch_size then counts rows, and completions are sampled for a row's first example");
    f("buckets", &ChatConfig::buckets, IntRange{1, 64}, "",
      "pad rows of a batch to one of this many lengths up to max_length; each length has its own CUDA graph");
    f("pool_batches", &ChatConfig::pool_batches, IntRange{1, 1 << 16}, "batches",
      "sort the examples of this many batches by length to reduce padding; 1 = do not sort");
  }
};

enum class DiversityMetric { semantic, bleu, distinct };
template <>
struct EnumNames<DiversityMetric> {
  static constexpr const char* kNames[] = {"semantic", "bleu", "distinct"};
};

enum class PerformanceMode { standard, safe };
template <>
struct EnumNames<PerformanceMode> {
  static constexpr const char* kNames[] = {"standard", "safe"};
};

enum class DiversityBaseline { leave_one_out, running_mean, none };
template <>
struct EnumNames<DiversityBaseline> {
  static constexpr const char* kNames[] = {"leave_one_out", "running_mean", "none"};
};

enum class LengthNorm { max, none };
template <>
struct EnumNames<LengthNorm> {
  static constexpr const char* kNames[] = {"max", "none"};
};

enum class SharedPrompts { off, answers, responses };
template <>
struct EnumNames<SharedPrompts> {
  static constexpr const char* kNames[] = {"off", "answers", "responses"};
};

// What the diversity of completions adds to the loss.
struct PolychromicConfig {
  PolychromicObjective objective = PolychromicObjective::score_function;
  double diversity_weight = 0.3;
  int64_t n_generations = 3;
  DiversityMetric diversity_metric = DiversityMetric::semantic;
  double diversity_temperature = 0.9;
  double diversity_top_p = 1;
  int64_t diversity_top_k = 0;
  double diversity_min_p = 0;
  int64_t max_generation_length = 100;
  std::string diversity_encoder_model = "";
  int64_t compute_diversity_every_n_steps = 1;
  int64_t max_examples_for_diversity = 4;
  PerformanceMode performance_mode = PerformanceMode::standard;
  DiversityBaseline baseline = DiversityBaseline::leave_one_out;
  int64_t subset_size = 2;
  LengthNorm length_norm = LengthNorm::max;
  bool normalize_advantages = false;
  double advantage_clip = 0;
  int64_t generation_batch = 0;
  SharedPrompts share_prompts = SharedPrompts::responses;

  template <class F>
  static void describe(F&& f) {
    f("objective", &PolychromicConfig::objective, Choice<PolychromicObjective>{}, "",
      "none = only cross-entropy; score_function = also maximise the expected diversity of sampled completions with an "
      "unbiased gradient; marginal = the same for sets of subset_size; compat = report the diversity as a constant "
      "without gradient, as the reference trainer does");
    f("diversity_weight", &PolychromicConfig::diversity_weight, RealRange{0, 1e3}, "",
      "weight that the diversity has in the loss, beside the cross-entropy of the responses", kSomeDiversity,
      kSamplesAnswers);
    f("n_generations", &PolychromicConfig::n_generations, IntRange{2, 1024}, "answers",
      "completions sampled for each prompt", kSomeDiversity, kSamplesAnswers);
    f("diversity_metric", &PolychromicConfig::diversity_metric, Choice<DiversityMetric>{}, "",
      "how diversity is measured: semantic = mean of 1 - cosine between two completions' embeddings; bleu = 1 - BLEU-2 "
      "against the other completions; distinct = number of different word pairs divided by all pairs");
    f("diversity_temperature", &PolychromicConfig::diversity_temperature, RealRange{0, 1e3, true}, "",
      "divide logits by this temperature, when completions are sampled and when their probability is differentiated",
      kSomeDiversity, kSamplesAnswers);
    f("diversity_top_p", &PolychromicConfig::diversity_top_p, RealRange{0, 1, true}, "",
      "sample from the smallest set of tokens with this total probability. Below 1, completions follow another "
      "distribution than the one that is differentiated",
      kSomeDiversity, kSamplesAnswers);
    f("diversity_top_k", &PolychromicConfig::diversity_top_k, IntRange{0, 1 << 24}, "tokens",
      "sample from the k most probable tokens; 0 = all. Otherwise as diversity_top_p", kSomeDiversity, kSamplesAnswers);
    f("diversity_min_p", &PolychromicConfig::diversity_min_p, RealRange{0, 1}, "",
      "sample from tokens that have at least this fraction of the largest probability; 0 = all. Otherwise as "
      "diversity_top_p",
      kSomeDiversity, kSamplesAnswers);
    f("max_generation_length", &PolychromicConfig::max_generation_length, IntRange{1, 1 << 20}, "tokens",
      "maximum length of a completion", kSomeDiversity, kSamplesAnswers);
    f("diversity_encoder_model", &PolychromicConfig::diversity_encoder_model, PathText{}, "",
      "folder of a BERT sentence encoder (config.json, model.safetensors, vocab.txt) that diversity_metric=semantic "
      "needs, e.g. all-MiniLM-L6-v2",
      ReadWhen{"polychromic.diversity_metric",
               {"semantic"},
               "embeds no answers",
               "set polychromic.diversity_metric to semantic"});
    f("compute_diversity_every_n_steps", &PolychromicConfig::compute_diversity_every_n_steps, IntRange{1}, "steps",
      "optimizer steps between two that sample completions", kSomeDiversity, kSamplesAnswers);
    f("max_examples_for_diversity", &PolychromicConfig::max_examples_for_diversity, IntRange{1, 1 << 20}, "examples",
      "sample completions for at most this many examples of a micro-batch, from its beginning", kSomeDiversity,
      kSamplesAnswers);
    f("performance_mode", &PolychromicConfig::performance_mode, Choice<PerformanceMode>{}, "",
      "safe = limit sampling to 3 completions of 80 tokens every 10 steps, as the reference trainer does on small "
      "machines",
      kSomeDiversity, kSamplesAnswers);
    f("baseline", &PolychromicConfig::baseline, Choice<DiversityBaseline>{}, "",
      "what a completion's diversity is compared with (objective=score_function). With two completions, leave_one_out "
      "uses the running mean",
      kSomeDiversity, kSamplesAnswers,
      ReadWhen{"polychromic.objective",
               {"score_function"},
               "compares with no baseline",
               "set polychromic.objective to score_function"});
    f("subset_size", &PolychromicConfig::subset_size, IntRange{1, 1023}, "answers",
      "completions in a set of objective=marginal; fewer than n_generations", kSomeDiversity, kSamplesAnswers,
      ReadWhen{
          "polychromic.objective", {"marginal"}, "takes no sets of answers", "set polychromic.objective to marginal"});
    f("length_norm", &PolychromicConfig::length_norm, Choice<LengthNorm>{}, "",
      "max = divide the term by max_generation_length, so that it does not grow with length; none = use the exact "
      "gradient",
      kSomeDiversity, kSamplesAnswers, kDiversityGradient);
    f("normalize_advantages", &PolychromicConfig::normalize_advantages, Flag{}, "",
      "divide advantages by their standard deviation over the step", kSomeDiversity, kSamplesAnswers,
      kDiversityGradient);
    f("advantage_clip", &PolychromicConfig::advantage_clip, RealRange{0, 1e6}, "",
      "clip advantages to this magnitude after that; 0 = no clipping", kSomeDiversity, kSamplesAnswers,
      kDiversityGradient);
    f("generation_batch", &PolychromicConfig::generation_batch, IntRange{0, 1 << 16}, "rows",
      "completions sampled at the same time; 0 = all of a step, up to 256 on a GPU and 64 on a CPU", Resume::free);
    f("share_prompts", &PolychromicConfig::share_prompts, Choice<SharedPrompts>{}, "",
      "prefix sharing: answers = compute each prompt once for its completions; responses = also share it with the "
      "responses in the same pass, fastest but with both in memory; off = repeat the prompt for each. Results differ "
      "only by rounding, and packing, lora.dropout and rewards turn responses into answers",
      Resume::free);
  }
};

enum class RewardCombination { weighted_sum, separately_normalised };
template <>
struct EnumNames<RewardCombination> {
  static constexpr const char* kNames[] = {"weighted_sum", "separately_normalised"};
};

enum class PolicyAggregation { dapo, grpo, dr_grpo, bnpo };
template <>
struct EnumNames<PolicyAggregation> {
  static constexpr const char* kNames[] = {"dapo", "grpo", "dr_grpo", "bnpo"};
};

enum class AdvantageScale { group, batch, none, compat };
template <>
struct EnumNames<AdvantageScale> {
  static constexpr const char* kNames[] = {"group", "batch", "none", "compat"};
};

enum class RatioLevel { token, sequence };
template <>
struct EnumNames<RatioLevel> {
  static constexpr const char* kNames[] = {"token", "sequence"};
};

// Policy optimisation by rewards.
struct GrpoConfig {
  int64_t start_step = 0;
  int64_t num_generations = 8;
  int64_t num_iterations = 1;
  int64_t max_completion_length = 256;
  double temperature = 1;
  double top_p = 1;
  int64_t top_k = 0;
  double min_p = 0;
  std::string rewards = "";
  RewardCombination reward_combination = RewardCombination::weighted_sum;
  std::string reward_pattern = "";
  bool reward_first_line = false;
  std::string reward_head = "";
  double diversity_weight = 0;
  PolicyAggregation loss_type = PolicyAggregation::dapo;
  AdvantageScale scale_rewards = AdvantageScale::group;
  RatioLevel importance_sampling_level = RatioLevel::token;
  double epsilon = 0.2;
  double epsilon_high = 0;
  double delta = 0;
  double beta = 0;
  bool mask_truncated_completions = false;

  template <class F>
  static void describe(F&& f) {
    f("start_step", &GrpoConfig::start_step, IntRange{0}, "",
      "use GRPO's loss from this step on: 1 = the whole run, 101 = after 100 steps of fine-tuning, 0 = never");
    f("num_generations", &GrpoConfig::num_generations, IntRange{2, 1024}, "answers",
      "completions in the group of a prompt");
    f("num_iterations", &GrpoConfig::num_iterations, IntRange{1, 64}, "steps",
      "optimizer steps per batch of completions (PPO epochs). From the second on, the epsilons clip the policy ratio");
    f("max_completion_length", &GrpoConfig::max_completion_length, IntRange{1, 1 << 20}, "tokens",
      "maximum length of a completion");
    f("temperature", &GrpoConfig::temperature, RealRange{0, 1e3, true}, "",
      "divide logits by this temperature, when completions are sampled and when they are scored");
    f("top_p", &GrpoConfig::top_p, RealRange{0, 1, true}, "",
      "sample from the smallest set of tokens with this total probability, as polychromic.diversity_top_p");
    f("top_k", &GrpoConfig::top_k, IntRange{0, 1 << 24}, "tokens", "sample from the k most probable tokens; 0 = all");
    f("min_p", &GrpoConfig::min_p, RealRange{0, 1}, "",
      "sample from tokens that have at least this fraction of the largest probability; 0 = all");
    f("rewards", &GrpoConfig::rewards, AnyText{}, "",
      "rewards of a completion, separated by commas, with weights behind a star: answer*2,length. Known are answer (is "
      "one of chat.answers_field, or the response), format, finished, overlong, diversity, learned, heuristic and its "
      "parts length, lexical, punctuation, engagement, relevance, sentiment");
    f("reward_combination", &GrpoConfig::reward_combination, Choice<RewardCombination>{}, "",
      "weighted_sum = add the rewards; separately_normalised = first divide each by its standard deviation in the "
      "group");
    f("reward_pattern", &GrpoConfig::reward_pattern, AnyText{}, "",
      "regular expression that a whole completion must match for the reward format");
    f("reward_first_line", &GrpoConfig::reward_first_line, Flag{}, "",
      "compare only the first line that is not empty, for the reward answer");
    f("reward_head", &GrpoConfig::reward_head, PathText{}, "",
      "safetensors file that holds the network of the reward learned");
    f("diversity_weight", &GrpoConfig::diversity_weight, RealRange{0, 1e3}, "",
      "add this weight times a completion's distance from the others of its group (polychromic.diversity_metric) to "
      "its reward");
    f("loss_type", &GrpoConfig::loss_type, Choice<PolicyAggregation>{}, "",
      "how token losses are averaged: dapo = over the tokens of the global batch; grpo = over each completion, then "
      "over completions; dr_grpo = sum / (completions * max_completion_length); bnpo = over the tokens of a "
      "micro-batch");
    f("scale_rewards", &GrpoConfig::scale_rewards, Choice<AdvantageScale>{}, "",
      "divide differences from the group's mean by the standard deviation of the group or of the batch; none = do not "
      "divide; compat = follow the reference trainer's rule");
    f("importance_sampling_level", &GrpoConfig::importance_sampling_level, Choice<RatioLevel>{}, "",
      "compute the policy ratio per token or per completion (sequence)");
    f("epsilon", &GrpoConfig::epsilon, RealRange{0, 0.999}, "", "clip the policy ratio from below at 1 - epsilon");
    f("epsilon_high", &GrpoConfig::epsilon_high, RealRange{0, 1e3}, "",
      "clip the policy ratio from above at 1 + epsilon_high; 0 = use epsilon");
    f("delta", &GrpoConfig::delta, RealRange{0, 1e3}, "",
      "bound the policy ratio by this value for negative advantages, too; 0 = no bound");
    f("beta", &GrpoConfig::beta, RealRange{0, 1e3}, "",
      "weight of the KL divergence (k3) from the model without its adapter; above 0 it needs lora.r above 0");
    f("mask_truncated_completions", &GrpoConfig::mask_truncated_completions, Flag{}, "",
      "leave completions that did not end by themselves out of the loss");
  }
};

}  // namespace hrm::config
