#pragma once
// Sections of task=polychromic: a causal language model from a Hugging Face folder, its adapter, its data, and what is
// made of the answers that it writes. Names and defaults follow the trainers that they come from, where those have them
// (PEFT's LoraConfig, TRL's GRPOConfig, the polychromic trainer's diversity settings).

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

// polychromic.performance_mode=safe samples at most so many answers.
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

enum class Quantization { none, nf4 };
template <>
struct EnumNames<Quantization> {
  static constexpr const char* kNames[] = {"none", "nf4"};
};

// The model.
struct HfConfig {
  std::string model = "";
  HfWeights weights = HfWeights::load;
  std::string tokenizer = "";
  Quantization quantize = Quantization::none;
  int64_t positions = 0;
  bool recompute = false;

  template <class F>
  static void describe(F&& f) {
    f("model", &HfConfig::model, PathText{}, "",
      "folder of a causal language model as Hugging Face's transformers saves it (config.json, model.safetensors or "
      "its shards, tokenizer.json): Qwen3, Llama or Mistral",
      Resume::free);
    f("weights", &HfConfig::weights, Choice<HfWeights>{}, "",
      "random = the folder needs config.json alone, and weights are drawn by run.seed: for timing and for training "
      "from scratch");
    f("tokenizer", &HfConfig::tokenizer, PathText{}, "", "folder with tokenizer.json; empty = hf.model", Resume::free);
    f("quantize", &HfConfig::quantize, Choice<Quantization>{}, "",
      "how the weights of the blocks' linear layers, which are frozen beside an adapter, are held: none = in the "
      "compute dtype; nf4 = 4-bit NormalFloat with double quantisation (QLoRA), a quarter of the memory and slower "
      "steps and answers; needs lora.r above 0");
    f("positions", &HfConfig::positions, IntRange{0, 1 << 20}, "tokens",
      "longest row that the model holds, prompt and answer; 0 = chat.max_length, or the prompt's part of it and "
      "polychromic.max_generation_length");
    f("recompute", &HfConfig::recompute, Flag{}, "",
      "activation checkpointing: keep each block's input alone for the backward pass", Resume::free);
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
      "rank of the adapters; the model's own weights are frozen. 0 = no adapters: all weights are trained");
    f("alpha", &LoraConfig::alpha, RealRange{0, 1e6}, "", "adapters are scaled by alpha / r", kWithAdapter);
    f("dropout", &LoraConfig::dropout, RealRange{0, 1, false, true}, "",
      "share of an adapter's inputs that is dropped in training", kWithAdapter);
    f("rslora", &LoraConfig::rslora, Flag{}, "", "scale by alpha / sqrt(r) in place of alpha / r", kWithAdapter);
    f("dora", &LoraConfig::dora, Flag{}, "",
      "DoRA: each output of a layer with an adapter also gets a trained magnitude, and the rest is its direction; "
      "slower steps",
      kWithAdapter);
    f("targets", &LoraConfig::targets, AnyText{}, "",
      "layers that get an adapter, with commas between: some of q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, "
      "down_proj, or whole names such as model.layers.0.mlp.up_proj; all-linear = all of them; pattern:REGEX = those "
      "whose whole name the regular expression matches",
      kWithAdapter);
    f("modules_to_save", &LoraConfig::modules_to_save, AnyText{}, "",
      "modules that are trained whole beside the adapters, with commas between: embed_tokens, lm_head, norms; a tied "
      "model then gets a head of its own",
      kWithAdapter);
    f("adapter", &LoraConfig::adapter, PathText{}, "",
      "PEFT folder to begin with, of the same r and targets; empty = an adapter that does nothing yet");
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
      "what stands around prompt and response: model = the chat_template of the tokenizer's folder, run as "
      "transformers runs it; chatml (Qwen), llama3, plain = the prompt as it stands and EOS behind the response, "
      "custom = prompt_template and response_template; auto = model, where the folder has a template");
    f("template_name", &ChatConfig::template_entry, AnyText{}, "",
      "template=model: which of several named templates; empty = the one called default", kModelTemplate);
    f("date", &ChatConfig::date, AnyText{}, "",
      "template=model: the day, such as 2026-11-25, that a template which writes today's date takes; empty = today",
      Resume::free, kModelTemplate);
    f("learn", &ChatConfig::learn, Choice<LearnedTurns>{}, "",
      "response = the last answer of a record; turns = every answer in it, as {% generation %} blocks of the template "
      "mark them (template=model, polychromic.objective=none)",
      kModelTemplate);
    f("bos", &ChatConfig::bos, Choice<ChatBos>{}, "",
      "template=plain: auto = BOS in front of a prompt where tokenizer.json's post-processor puts it; off = none",
      ReadWhen{"chat.template", {"plain"}, "puts BOS where its own texts have it", "set chat.template to plain"});
    f("thinking", &ChatConfig::thinking, Choice<ChatThinking>{}, "",
      "model: what the template gets as enable_thinking, auto = nothing; chatml: off = an empty <think> block ends the "
      "prompt, as models that can think are told not to, auto = off where the tokenizer has <think>",
      ReadWhen{
          "chat.template", {"auto", "model", "chatml"}, "knows no thinking", "set chat.template to model or chatml"});
    f("prompt_template", &ChatConfig::prompt_template, AnyText{}, "",
      "template=custom: text with the places {prompt} and {member of the record}, and {bos} at its beginning");
    f("response_template", &ChatConfig::response_template, AnyText{}, "",
      "template=custom: text with the place {response}, and {eos} at its end");
    f("messages_field", &ChatConfig::messages_field, AnyText{}, "",
      "member of a record that holds a conversation: a list of role and content, or of from and value (ShareGPT). A "
      "record without it, and without prompt_field, is searched for the one member that holds such a list, or for "
      "instruction, input and output (Alpaca)");
    f("prompt_field", &ChatConfig::prompt_field, AnyText{}, "",
      "member of a record that holds the prompt: a text, or the messages in front of the response");
    f("response_field", &ChatConfig::response_field, AnyText{}, "",
      "member that holds the response: a text, or a message; response = also completion");
    f("answers_field", &ChatConfig::answers_field, AnyText{}, "",
      "member with a list of all answers that are right, or with the one that is, for rewards and evaluation");
    f("tools_field", &ChatConfig::tools_field, AnyText{}, "",
      "template=model: member with the list of tools that the assistant can call, which the template gets as tools; "
      "empty = none is read");
    f("id_field", &ChatConfig::id_field, AnyText{}, "",
      "member by which records belong together, so that no split parts them; empty = the prompt's text");
    f("value_field", &ChatConfig::value_field, AnyText{}, "", "member with a number, for stratify, e.g. reply_likes",
      ReadWhen{"chat.stratify", {"true"}, "does not split by it", "set chat.stratify to true"});
    f("instruction", &ChatConfig::instruction, AnyText{}, "",
      "what the user says, with places {member}: 'Reply to this tweet: {tweet}'; empty = the prompt alone");
    f("max_length", &ChatConfig::max_length, IntRange{2, 1 << 20}, "tokens",
      "of prompt and response together: longer responses are cut, prompts without room for one are left out and "
      "counted");
    f("val_share", &ChatConfig::val_share, RealRange{0, 1, false, true}, "",
      "share of the prompts of data.train that is kept for evaluation, where data.test is empty");
    f("test_share", &ChatConfig::test_share, RealRange{0, 1, false, true}, "",
      "share that neither training nor evaluation sees, for 'hrm_train eval'");
    f("stratify", &ChatConfig::stratify, Flag{}, "", "split each quarter by value_field for itself");
    f("deduplicate", &ChatConfig::deduplicate, Flag{}, "",
      "of records with one prompt and response take the first alone");
    f("packing", &ChatConfig::packing, Flag{}, "",
      "rows of max_length hold several whole examples, each of which sees itself alone; train.global_batch_size counts "
      "rows, and the first example of a row is the one that answers are sampled to. Not for GRPO");
    f("buckets", &ChatConfig::buckets, IntRange{1, 64}, "",
      "rows of a batch are padded to one of so many lengths up to max_length; each is a CUDA graph of its own");
    f("pool_batches", &ChatConfig::pool_batches, IntRange{1, 1 << 16}, "batches",
      "deal out the examples of so many batches by length, so that less is padded; 1 = by chance");
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

// What the diversity of sampled answers adds to the loss.
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
      "none = cross-entropy alone; score_function = minus diversity_weight times the expected diversity of the answers "
      "that the model samples, with a gradient that is right in the mean; marginal = the same of sets of subset_size "
      "of them; compat = the diversity as a constant, which the reference trainer has: it changes no gradient");
    f("diversity_weight", &PolychromicConfig::diversity_weight, RealRange{0, 1e3}, "",
      "weight of the diversity beside the loss of the responses", kSomeDiversity, kSamplesAnswers);
    f("n_generations", &PolychromicConfig::n_generations, IntRange{2, 1024}, "answers", "sampled to each prompt",
      kSomeDiversity, kSamplesAnswers);
    f("diversity_metric", &PolychromicConfig::diversity_metric, Choice<DiversityMetric>{}, "",
      "semantic = mean of 1 - cosine of the embeddings of two answers; bleu = 1 - BLEU-2 of each against the others; "
      "distinct = different pairs of words / all pairs");
    f("diversity_temperature", &PolychromicConfig::diversity_temperature, RealRange{0, 1e3, true}, "",
      "logits are divided by it, when answers are sampled and when their probability is differentiated", kSomeDiversity,
      kSamplesAnswers);
    f("diversity_top_p", &PolychromicConfig::diversity_top_p, RealRange{0, 1, true}, "",
      "sample from the fewest tokens of this probability; below 1 answers are sampled from another distribution than "
      "the one that is differentiated",
      kSomeDiversity, kSamplesAnswers);
    f("diversity_top_k", &PolychromicConfig::diversity_top_k, IntRange{0, 1 << 24}, "tokens",
      "sample from the k most probable tokens; 0 = all. As diversity_top_p", kSomeDiversity, kSamplesAnswers);
    f("diversity_min_p", &PolychromicConfig::diversity_min_p, RealRange{0, 1}, "",
      "sample from tokens of at least this share of the greatest probability; 0 = all. As diversity_top_p",
      kSomeDiversity, kSamplesAnswers);
    f("max_generation_length", &PolychromicConfig::max_generation_length, IntRange{1, 1 << 20}, "tokens",
      "longest answer", kSomeDiversity, kSamplesAnswers);
    f("diversity_encoder_model", &PolychromicConfig::diversity_encoder_model, PathText{}, "",
      "diversity_metric=semantic: folder of a BERT sentence encoder (config.json, model.safetensors, vocab.txt), e.g. "
      "all-MiniLM-L6-v2",
      ReadWhen{"polychromic.diversity_metric",
               {"semantic"},
               "embeds no answers",
               "set polychromic.diversity_metric to semantic"});
    f("compute_diversity_every_n_steps", &PolychromicConfig::compute_diversity_every_n_steps, IntRange{1}, "steps",
      "sample answers every so many optimizer steps", kSomeDiversity, kSamplesAnswers);
    f("max_examples_for_diversity", &PolychromicConfig::max_examples_for_diversity, IntRange{1, 1 << 20}, "examples",
      "of a micro-batch, the first so many", kSomeDiversity, kSamplesAnswers);
    f("performance_mode", &PolychromicConfig::performance_mode, Choice<PerformanceMode>{}, "",
      "safe = at most 3 answers of 80 tokens, every 10 steps at most, as the reference trainer's mode for small "
      "machines",
      kSomeDiversity, kSamplesAnswers);
    f("baseline", &PolychromicConfig::baseline, Choice<DiversityBaseline>{}, "",
      "objective=score_function: what an answer's diversity is compared with; with two answers leave_one_out is the "
      "running mean",
      kSomeDiversity, kSamplesAnswers,
      ReadWhen{"polychromic.objective",
               {"score_function"},
               "compares with no baseline",
               "set polychromic.objective to score_function"});
    f("subset_size", &PolychromicConfig::subset_size, IntRange{1, 1023}, "answers",
      "objective=marginal: answers of a set, fewer than n_generations", kSomeDiversity, kSamplesAnswers,
      ReadWhen{
          "polychromic.objective", {"marginal"}, "takes no sets of answers", "set polychromic.objective to marginal"});
    f("length_norm", &PolychromicConfig::length_norm, Choice<LengthNorm>{}, "",
      "max = the term is divided by max_generation_length, so that its size does not grow with the answers; none = the "
      "exact gradient",
      kSomeDiversity, kSamplesAnswers, kDiversityGradient);
    f("normalize_advantages", &PolychromicConfig::normalize_advantages, Flag{}, "",
      "divide by their standard deviation over the step", kSomeDiversity, kSamplesAnswers, kDiversityGradient);
    f("advantage_clip", &PolychromicConfig::advantage_clip, RealRange{0, 1e6}, "",
      "then bound their size; 0 = no bound", kSomeDiversity, kSamplesAnswers, kDiversityGradient);
    f("generation_batch", &PolychromicConfig::generation_batch, IntRange{0, 1 << 16}, "rows",
      "answers that are written at a time; 0 = all of a step, up to 256 on a GPU and 64 on a CPU", Resume::free);
    f("share_prompts", &PolychromicConfig::share_prompts, Choice<SharedPrompts>{}, "",
      "what goes through the model of answers that are learned from: answers = each prompt once, and no answer's "
      "padding; responses = that in one pass with the responses, whose prompts serve the answers, too (without "
      "chat.packing, lora.dropout and rewards, else as answers): fastest, but both are in memory together; off = each "
      "answer behind its own prompt, in rows of one width. The same step but for rounding",
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
      "from this step on the loss is GRPO's in place of the objective above: 1 = the whole run, 101 = after 100 steps "
      "of fine-tuning; 0 = never");
    f("num_generations", &GrpoConfig::num_generations, IntRange{2, 1024}, "answers", "sampled to each prompt: a group");
    f("num_iterations", &GrpoConfig::num_iterations, IntRange{1, 64}, "steps",
      "that learn from one batch of answers, one after the other: from the second on the policy is another one than "
      "that which sampled, and the epsilons bound how far it goes");
    f("max_completion_length", &GrpoConfig::max_completion_length, IntRange{1, 1 << 20}, "tokens", "longest answer");
    f("temperature", &GrpoConfig::temperature, RealRange{0, 1e3, true}, "", "as polychromic.diversity_temperature");
    f("top_p", &GrpoConfig::top_p, RealRange{0, 1, true}, "", "as polychromic.diversity_top_p");
    f("top_k", &GrpoConfig::top_k, IntRange{0, 1 << 24}, "tokens", "as polychromic.diversity_top_k");
    f("min_p", &GrpoConfig::min_p, RealRange{0, 1}, "", "as polychromic.diversity_min_p");
    f("rewards", &GrpoConfig::rewards, AnyText{}, "",
      "what answers are worth, with commas between, each with a weight behind a star if it is not 1: answer*2,length. "
      "answer (one of chat.answers_field, or the response where a record has none), format, finished, overlong, "
      "diversity, heuristic, learned, or a part of heuristic: length, lexical, "
      "punctuation, engagement, relevance, sentiment");
    f("reward_combination", &GrpoConfig::reward_combination, Choice<RewardCombination>{}, "",
      "separately_normalised = each reward is first divided by its own standard deviation in the group");
    f("reward_pattern", &GrpoConfig::reward_pattern, AnyText{}, "",
      "reward format: the regular expression that the whole answer must match");
    f("reward_first_line", &GrpoConfig::reward_first_line, Flag{}, "",
      "reward answer: the first line that is not empty counts alone");
    f("reward_head", &GrpoConfig::reward_head, PathText{}, "", "reward learned: the network's safetensors file");
    f("diversity_weight", &GrpoConfig::diversity_weight, RealRange{0, 1e3}, "",
      "of how far an answer is from the others of its group (polychromic.diversity_metric), added to the rewards");
    f("loss_type", &GrpoConfig::loss_type, Choice<PolicyAggregation>{}, "",
      "dapo = mean over the tokens of the global batch, grpo = of each answer, then over answers, dr_grpo = sum / "
      "(answers * max_completion_length), bnpo = mean over the tokens of a micro-batch");
    f("scale_rewards", &GrpoConfig::scale_rewards, Choice<AdvantageScale>{}, "",
      "what differences from the group's mean are divided by: the standard deviation of the group or of the batch, or "
      "nothing; compat = the reference trainer's rule");
    f("importance_sampling_level", &GrpoConfig::importance_sampling_level, Choice<RatioLevel>{}, "",
      "ratio of the policies of each token, or of the whole answer");
    f("epsilon", &GrpoConfig::epsilon, RealRange{0, 0.999}, "", "the ratio counts from 1 - epsilon ...");
    f("epsilon_high", &GrpoConfig::epsilon_high, RealRange{0, 1e3}, "", "... to 1 + epsilon_high; 0 = epsilon");
    f("delta", &GrpoConfig::delta, RealRange{0, 1e3}, "", "and is never taken for more than this; 0 = no bound");
    f("beta", &GrpoConfig::beta, RealRange{0, 1e3}, "",
      "weight of the KL divergence (k3) from the model without its adapter; needs lora.r above 0");
    f("mask_truncated_completions", &GrpoConfig::mask_truncated_completions, Flag{}, "",
      "leave answers that did not end by themselves out of the loss");
  }
};

}  // namespace hrm::config
