#include "consistency.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "hrm/base/error.h"
#include "hrm/base/text.h"
#include "hrm/config/schema.h"
#include "hrm/config/unread.h"

namespace hrm::config {
namespace {

class Checker {
 public:
  explicit Checker(const LoadedConfig& loaded) : loaded_(loaded) {}

  // "key = value (origin)".
  std::string at(const std::string& key) const {
    return cat(key, " = ", safe_json(to_text(find_field(key)->get(loaded_.config))), " (", loaded_.origin(key).text(),
               ")");
  }

  bool by_default(const std::string& key) const { return loaded_.origin(key).kind == Origin::Kind::standard; }
  bool is_default_value(const std::string& key) const {
    const Field* field = find_field(key);
    return field->get(loaded_.config) == field->get(Config());
  }
  // Whether somebody asked for something else than usual and meant it beside the value of `other`. What a file says is
  // not refused where another file or the command line switches off what it belongs to.
  bool asked_beside(const std::string& key, const std::string& other) const {
    if (by_default(key) || is_default_value(key)) return false;
    const Origin &own = loaded_.origin(key), &switched = loaded_.origin(other);
    return own.kind == Origin::Kind::command_line || switched.kind == Origin::Kind::standard ||
           (switched.kind == Origin::Kind::file && switched.file == own.file);
  }

  template <class... Args>
  void require(bool condition, const Args&... sentence) const {
    hrm::require(condition, ExitCode::usage, sentence...);
  }

 private:
  const LoadedConfig& loaded_;
};

// "use 6 or 8": the divisors of n next to `wanted`.
std::string nearest_divisors(int64_t n, int64_t wanted) {
  if (wanted >= n) return cat("use ", n, " at most");
  int64_t below = wanted, above = wanted;
  while (n % below != 0) --below;
  while (n % above != 0) ++above;
  return cat("use ", below, " or ", above);
}

void check_model(const Checker& check, const ModelConfig& m) {
  if (!m.mlp_t) {
    check.require(m.hidden_size % m.num_heads == 0, check.at("model.num_heads"), " does not divide ",
                  check.at("model.hidden_size"), "; ", nearest_divisors(m.hidden_size, m.num_heads), " heads");
    const int64_t head_size = m.hidden_size / m.num_heads;
    check.require(m.pos_encodings != "rope" || head_size % 2 == 0, check.at("model.pos_encodings"),
                  " rotates pairs of values, but a head has an odd number of them: hidden_size / num_heads = ",
                  head_size, "; change ", check.at("model.num_heads"), " or ", check.at("model.hidden_size"));
  }
  check.require(!(m.mlp_t && m.pos_encodings == "rope"), check.at("model.pos_encodings"), " belongs to attention, and ",
                check.at("model.mlp_t"), " has none; set model.pos_encodings to none or learned");
  if (m.arch == "hrm") {
    check.require(m.H_layers > 0, check.at("model.H_layers"), ", but ", check.at("model.arch"),
                  " needs an H module; set model.H_layers to 4, or model.arch to trm");
  } else {
    check.require(m.H_layers == 0, check.at("model.H_layers"), ", but ", check.at("model.arch"),
                  " has no H module; set model.H_layers to 0");
  }
  if (m.arch == "transformer") {
    const auto once = [&](const char* key, int64_t cycles) {
      check.require(cycles == 1, check.at(key), ", but ", check.at("model.arch"),
                    " runs its blocks once per segment; set ", key, " to 1");
    };
    once("model.H_cycles", m.H_cycles);
    once("model.L_cycles", m.L_cycles);
    check.require(!m.mlp_t, check.at("model.mlp_t"), ", but ", check.at("model.arch"),
                  " is the attention baseline; set model.mlp_t to false, or model.arch to trm");
  }
  check.require(m.puzzle_emb_ndim != 0 || m.puzzle_emb_len == 0, check.at("model.puzzle_emb_len"),
                " reserves slots for a puzzle embedding, but ", check.at("model.puzzle_emb_ndim"),
                " means that there is none; set model.puzzle_emb_len to 0");
  if (m.puzzle_emb_len > 0) {
    const int64_t width = m.puzzle_emb_ndim < 0 ? m.hidden_size : m.puzzle_emb_ndim;
    const int64_t needed = (width + m.hidden_size - 1) / m.hidden_size;
    check.require(m.puzzle_emb_len >= needed, check.at("model.puzzle_emb_len"), " is too short for ",
                  check.at("model.puzzle_emb_ndim"), ", which needs ", needed, " slots of ",
                  check.at("model.hidden_size"), "; set model.puzzle_emb_len to 0 (as many as needed) or to ", needed,
                  " or more");
  }
}

void check_data(const Checker& check, const DataConfig& d) {
  check.require((d.box_rows == 0) == (d.box_cols == 0), check.at("data.box_rows"), " and ", check.at("data.box_cols"),
                ": give both sizes of a box, or neither");
  if (d.kind == "maze") {
    check.require(d.augmentation != "sudoku", check.at("data.augmentation"), " would break a maze, and ",
                  check.at("data.kind"), "; set data.augmentation to dihedral or none");
    check.require(d.box_rows == 0, check.at("data.box_rows"), ", but ", check.at("data.kind"),
                  " has no boxes; set data.box_rows and data.box_cols to 0");
  }
  check.require(!(d.augmentation == "dihedral" && d.box_rows != d.box_cols), check.at("data.augmentation"),
                " turns boxes on their side, which needs square ones: ", check.at("data.box_rows"), ", ",
                check.at("data.box_cols"), "; set data.augmentation to sudoku or none");
}

void check_schedule(const Checker& check, const OptimConfig& o, const TrainConfig& t) {
  check.require(t.steps == 0 || o.warmup_steps <= t.steps, check.at("optim.warmup_steps"), " is longer than ",
                check.at("train.steps"),
                ", so the learning rate would never reach optim.lr; set optim.warmup_steps to ", t.steps / 10,
                " or so");
  if (o.schedule != "wsd") {
    const auto unused = [&](const char* key, bool given) {
      check.require(!given, check.at(key), " belongs to the schedule wsd, not to ", check.at("optim.schedule"),
                    "; leave it out, or set optim.schedule to wsd");
    };
    unused("optim.wsd_stable_steps", o.wsd_stable_steps >= 0);
    unused("optim.wsd_decay_steps", o.wsd_decay_steps >= 0);
    unused("optim.wsd_shape", o.wsd_shape != OptimConfig().wsd_shape);
    return;
  }
  if (t.steps == 0) return;
  // One by one, for their sum may be more than 64 bits hold.
  int64_t left = t.steps - o.warmup_steps;
  for (const auto& [key, steps] : {std::pair{"optim.wsd_stable_steps", o.wsd_stable_steps},
                                   std::pair{"optim.wsd_decay_steps", o.wsd_decay_steps}}) {
    check.require(steps <= left, check.at(key), " is more than the ", left, " steps that ", check.at("train.steps"),
                  " leaves it; set it to ", left, " or less, or train longer");
    left -= std::max<int64_t>(0, steps);
  }
}

void check_optim(const Checker& check, const OptimConfig& o, const ParallelConfig& p) {
  if (o.name != "muon") return;
  check.require(o.lr > 0, check.at("optim.lr"), " is no rate for ", check.at("optim.name"),
                "; set optim.lr to e.g. 0.02");
  check.require(p.zero == 0, check.at("optim.name"), " works on whole matrices, of which ", check.at("parallel.zero"),
                " gives each rank a slice; set parallel.zero to 0");
}

void check_train(const Checker& check, const TrainConfig& t) {
  if (t.micro_batch_size > 0) {
    check.require(t.global_batch_size % t.micro_batch_size == 0, check.at("train.micro_batch_size"),
                  " does not divide ", check.at("train.global_batch_size"), "; ",
                  nearest_divisors(t.global_batch_size, t.micro_batch_size));
  }
}

void check_eval(const Checker& check, const Config& c) {
  // Of task polychromic the data decide: whether files of theirs are a split already (PolychromicTask::open_data).
  const bool no_test = c.task == "puzzle" ? c.data.test.empty() : c.task == "language" ? c.data.test == "none" : false;
  const char* test = c.task == "puzzle" ? "a dataset directory or a CSV file" : "folders of language data";
  check.require(c.train.eval_every == 0 || !no_test, check.at("train.eval_every"), " asks for evaluations, but ",
                check.at("data.test"), "; set data.test to ", test, ", or train.eval_every to 0");
  check.require(c.train.early_stop_evals == 0 || c.train.eval_every > 0, check.at("train.early_stop_evals"),
                " counts evaluations, but ", check.at("train.eval_every"),
                " makes one at the end alone; set train.eval_every, or train.early_stop_evals to 0");
  check.require(c.train.early_stop_delta == 0 || c.train.early_stop_evals > 0, check.at("train.early_stop_delta"),
                " has nothing to judge: ", check.at("train.early_stop_evals"),
                "; set train.early_stop_evals to e.g. 5");
  const bool wants_average = c.eval.weights == "ema" || c.eval.weights == "both";
  check.require(!wants_average || c.optim.ema > 0, check.at("eval.weights"), " needs averaged weights, but ",
                check.at("optim.ema"), " keeps none; set optim.ema to e.g. 0.999, or eval.weights to auto");
}

void check_recursions(const Checker& check, const Config& c) {
  const bool fits_fp8 = c.precision.compute == "auto" || c.precision.compute == "bf16";
  check.require(c.precision.recursions != "fp8" || fits_fp8, check.at("precision.recursions"),
                " stands beside bf16 alone, and not beside ", check.at("precision.compute"),
                "; set precision.compute to bf16, or precision.recursions to same");
  if (c.precision.recursions == "fp8") {
    const ModelConfig& m = c.model;
    // Of HRM also the whole pass for the target of Q learning.
    const bool recurs = m.arch == "hrm" ? m.H_cycles * m.L_cycles > 1 || (!m.no_ACT_continue && m.halt_max_steps > 1)
                                        : m.arch == "trm" && m.H_cycles > 1;
    check.require(recurs, check.at("precision.recursions"), " has nothing to do: with ", check.at("model.arch"),
                  " and ", check.at("model.H_cycles"),
                  " all passes are differentiated; set precision.recursions to same");
    check.require(m.hidden_size % 16 == 0, check.at("precision.recursions"), " needs a width of a multiple of 16, not ",
                  check.at("model.hidden_size"), "; set precision.recursions to same");
  }
}

void check_arithmetic(const Checker& check, const Config& c) {
  if (!c.runtime.deterministic) return;
  check.require(c.runtime.sdpa != "cudnn" && c.runtime.sdpa != "efficient", check.at("runtime.sdpa"),
                " adds its gradients in no fixed order, against ", check.at("runtime.deterministic"),
                "; set runtime.sdpa to auto, flash or math");
  check.require(!c.runtime.cudnn_benchmark, check.at("runtime.cudnn_benchmark"),
                " chooses algorithms by the clock, against ", check.at("runtime.deterministic"),
                "; set one of them to false");
}

void check_profiling(const Checker& check, const ProfilingConfig& p, const TrainConfig& t) {
  check.require(!p.nsight_window || p.trace_steps > 0, check.at("profiling.nsight_window"), " asks for a window of ",
                check.at("profiling.trace_steps"), "; set profiling.trace_steps to 3 or so");
  check.require(!p.trace || p.trace_steps > 0, check.at("profiling.trace"), " asks for a trace of ",
                check.at("profiling.trace_steps"),
                "; set profiling.trace_steps to 5 or so, or profiling.trace to false");
  const bool records = p.trace || p.nsight_window;
  check.require(!records || t.steps == 0 || p.trace_after < t.steps, check.at("profiling.trace_after"),
                " leaves nothing to record, for the run has ", check.at("train.steps"),
                "; set profiling.trace_after to less than that");
}

// Which tasks a setting is for; empty: all. Names that end in a dot stand for all below them.
std::string tasks_of(const std::string& key) {
  static constexpr std::pair<const char*, const char*> kOwners[] = {
      {"model.", "puzzle"},
      {"data.kind", "puzzle"},
      {"data.augmentation", "puzzle"},
      {"data.augmentation_device", "puzzle"},
      {"data.box_rows", "puzzle"},
      {"data.box_cols", "puzzle"},
      {"data.subsample", "puzzle"},
      {"data.min_rating", "puzzle"},
      {"data.reference_semantics", "puzzle"},
      {"objective.loss", "puzzle"},
      {"objective.loss_precision", "puzzle"},
      {"optim.puzzle_emb_lr", "puzzle"},
      {"optim.puzzle_emb_weight_decay", "puzzle"},
      {"eval.segments", "puzzle"},
      {"eval.early_halt", "puzzle"},
      {"precision.recursions", "puzzle"},
      {"precision.fp8_amax_history", "puzzle"},
      {"precision.fp8_margin", "puzzle"},
      {"precision.fp8_warmup_steps", "puzzle"},
      {"lm.", "language"},
      {"moe.", "language"},
      {"data.encoder_len", "language"},
      {"data.decoder_len", "language"},
      {"data.question_field", "puzzle"},
      {"data.answer_field", "puzzle"},
      {"data.document_masks", "language"},
      {"data.max_malformed", "language polychromic"},
      {"data.cache", "language"},
      {"objective.deep_supervision", "language"},
      {"objective.halting", "language"},
      {"objective.halting_target", "language"},
      {"objective.chunk", "language polychromic"},
      {"data.prefetch_batches", "puzzle language"},
      {"eval.answers", "polychromic"},
      {"eval.answer_temperature", "polychromic"},
      {"eval.answer_top_p", "polychromic"},
      {"eval.answer_tokens", "polychromic"},
      {"hf.", "polychromic"},
      {"lora.", "polychromic"},
      {"chat.", "polychromic"},
      {"polychromic.", "polychromic"},
      {"grpo.", "polychromic"},
  };
  for (const auto& [name, tasks] : kOwners) {
    if (std::string_view(name).ends_with('.') ? key.starts_with(name) : key == name) return tasks;
  }
  return "";
}

// Settings of another task: they would do nothing.
void check_task(const Checker& check, const Config& c) {
  for (const std::string& key : differing_keys(c, Config())) {
    std::string tasks = tasks_of(key);
    if (tasks.empty() || tasks.find(c.task) != std::string::npos) continue;
    if (const size_t gap = tasks.find(' '); gap != std::string::npos) tasks.replace(gap, 1, " and ");
    check.require(check.by_default(key), check.at(key), " belongs to task ", tasks, ", but ", check.at("task"),
                  "; leave it out");
  }
}

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
  check.require(c.hf.quantize == "none" || c.lora.r > 0, at("hf.quantize"), " is for weights that are frozen, but ",
                at("lora.r"), " trains all of them; set lora.r to 16, or hf.quantize to none");
  check.require(
      c.chat.template_name == "custom" || (c.chat.prompt_template.empty() && c.chat.response_template.empty()),
      at("chat.prompt_template"), " and ", at("chat.response_template"), " belong to the template custom, not to ",
      at("chat.template"), "; leave them out, or set chat.template to custom");
  check.require(c.chat.learn == "response" || (p.objective == "none" && g.start_step == 0), at("chat.learn"),
                " is for supervised fine-tuning; set it to response, or polychromic.objective to none and "
                "grpo.start_step to 0");
  check.require(c.chat.val_share + c.chat.test_share < 1, at("chat.val_share"), " and ", at("chat.test_share"),
                " leave nothing to train on; make them smaller");
  check.require(!c.chat.stratify || !c.chat.value_field.empty(), at("chat.stratify"), " needs ", at("chat.value_field"),
                "; name the member with the number");
  check.require(p.objective != "marginal" || p.subset_size < p.n_generations, at("polychromic.subset_size"),
                " is not fewer than ", at("polychromic.n_generations"), "; set it to ", p.n_generations - 1,
                " or less");
  const bool samples_for_diversity = p.objective != "none" && g.start_step != 1;
  check.require(!samples_for_diversity || p.objective != "marginal" || p.diversity_metric == "semantic",
                at("polychromic.objective"), " measures distances of embeddings, which ",
                at("polychromic.diversity_metric"),
                " has not; set polychromic.diversity_metric to semantic, or polychromic.objective to score_function");
  constexpr int64_t kSafeSamples = 3;  // as tasks::PolychromicPlan
  check.require(!samples_for_diversity || p.objective != "marginal" || p.performance_mode != "safe" ||
                    p.subset_size < std::min(p.n_generations, kSafeSamples),
                at("polychromic.subset_size"), " is not fewer than the ", kSafeSamples, " answers of ",
                at("polychromic.performance_mode"), "; set it to 2");
  check.require(c.parallel.zero < 2, at("parallel.zero"),
                " sends gradients on when a block was gone through once, but ", at("task"),
                " goes through it twice; set parallel.zero to 1 or 0");
  const bool whole_run_grpo = g.start_step == 1;
  if (p.objective != "none" && !whole_run_grpo && p.diversity_metric == "semantic") {
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
      check.require(!is_named || (p.diversity_metric == "semantic" && !p.diversity_encoder_model.empty()),
                    at("grpo.rewards"), ": the reward ", reward, " compares embeddings, but ",
                    at("polychromic.diversity_metric"), " and ", at("polychromic.diversity_encoder_model"),
                    "; set them to semantic and a sentence encoder's folder, or leave the reward out");
    }
    const std::vector<std::string> rewards = reward_names(c);
    const bool rewards_diversity = std::find(rewards.begin(), rewards.end(), "diversity") != rewards.end();
    check.require((!rewards_diversity && g.diversity_weight == 0) || p.diversity_metric != "semantic" ||
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

// Each of these was asked for and would change nothing beside `other`.
void refuse_unread(const Checker& check, std::initializer_list<const char*> keys, const char* other, const char* why,
                   const std::string& way_out) {
  for (const char* key : keys) {
    check.require(!check.asked_beside(key, other), check.at(key), " has no effect, for ", check.at(other), " ", why,
                  "; leave it out", way_out.empty() ? "" : ", or ", way_out);
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
    refuse_unread(check, {key}, "grpo.rewards", cat("does not list the reward ", reward, " that reads it").c_str(),
                  cat("add ", reward, " to grpo.rewards"));
  }
}

// Settings of task polychromic that were asked for and would change nothing.
void check_unread_polychromic(const Checker& check, const Config& c) {
  const PolychromicConfig& p = c.polychromic;
  if (c.lora.r == 0) {
    refuse_unread(check,
                  {"lora.alpha", "lora.dropout", "lora.rslora", "lora.dora", "lora.targets", "lora.modules_to_save"},
                  "lora.r", "means no adapter", "set lora.r to 16");
  }
  const std::string& name = c.chat.template_name;
  const bool runs_model = name == "auto" || name == "model";
  if (!runs_model && name != "chatml") {
    refuse_unread(check, {"chat.thinking"}, "chat.template", "knows no thinking",
                  "set chat.template to model or chatml");
  }
  if (!runs_model) {
    refuse_unread(check, {"chat.template_name", "chat.date", "chat.learn"}, "chat.template",
                  "is not the model's own template", "set chat.template to model");
  }
  if (name != "plain") {
    refuse_unread(check, {"chat.bos"}, "chat.template", "puts BOS where its own texts have it",
                  "set chat.template to plain");
  }
  if (!c.chat.stratify) {
    refuse_unread(check, {"chat.value_field"}, "chat.stratify", "does not split by it", "set chat.stratify to true");
  }
  if (!c.data.test.empty() && c.chat.val_share > 0) {
    refuse_unread(check, {"chat.val_share"}, "data.test", "is what is evaluated", "");
  }
  if (p.diversity_metric != "semantic") {
    refuse_unread(check, {"polychromic.diversity_encoder_model"}, "polychromic.diversity_metric", "embeds no answers",
                  "set polychromic.diversity_metric to semantic");
  }
  const std::initializer_list<const char*> of_diversity = {"polychromic.diversity_weight",
                                                           "polychromic.n_generations",
                                                           "polychromic.diversity_temperature",
                                                           "polychromic.diversity_top_p",
                                                           "polychromic.diversity_top_k",
                                                           "polychromic.diversity_min_p",
                                                           "polychromic.max_generation_length",
                                                           "polychromic.compute_diversity_every_n_steps",
                                                           "polychromic.max_examples_for_diversity",
                                                           "polychromic.performance_mode",
                                                           "polychromic.baseline",
                                                           "polychromic.subset_size",
                                                           "polychromic.length_norm",
                                                           "polychromic.normalize_advantages",
                                                           "polychromic.advantage_clip"};
  if (c.grpo.start_step == 1) {
    if (p.objective != "none") {
      refuse_unread(check, {"polychromic.objective"}, "grpo.start_step", "leaves no step to it",
                    "set grpo.start_step to a later step");
    }
    refuse_unread(check, of_diversity, "grpo.start_step", "leaves no step to polychromic.objective",
                  "set grpo.start_step to a later step (rewards have grpo.diversity_weight and settings of their own)");
  } else if (p.objective == "none") {
    refuse_unread(check, of_diversity, "polychromic.objective", "samples no answers for diversity",
                  "set polychromic.objective to score_function");
    if (c.grpo.start_step == 0) {
      refuse_unread(check, {"polychromic.generation_batch", "polychromic.share_prompts"}, "polychromic.objective",
                    "samples no answers", "set polychromic.objective to score_function");
    }
  } else {
    if (p.objective != "score_function") {
      refuse_unread(check, {"polychromic.baseline"}, "polychromic.objective", "compares with no baseline",
                    "set polychromic.objective to score_function");
    }
    if (p.objective != "marginal") {
      refuse_unread(check, {"polychromic.subset_size"}, "polychromic.objective", "takes no sets of answers",
                    "set polychromic.objective to marginal");
    }
    if (p.objective == "compat" && c.grpo.start_step == 0) {
      refuse_unread(check, {"polychromic.share_prompts"}, "polychromic.objective", "learns from no answers",
                    "set polychromic.objective to score_function");
    }
    if (p.objective == "compat") {
      refuse_unread(check,
                    {"polychromic.length_norm", "polychromic.normalize_advantages", "polychromic.advantage_clip"},
                    "polychromic.objective", "has no gradient", "set polychromic.objective to score_function");
    }
  }
}

void check_lm(const Checker& check, const Config& c) {
  const LmConfig& lm = c.lm;
  const MoeConfig& moe = c.moe;
  const auto at = [&](const char* key) { return check.at(key); };
  check.require(lm.head_dim > 0 || lm.hidden_size % lm.num_heads == 0, at("lm.num_heads"), " does not divide ",
                at("lm.hidden_size"), "; ", nearest_divisors(lm.hidden_size, lm.num_heads),
                " heads, or set lm.head_dim");
  check.require(lm.kv_heads == 0 || lm.num_heads % lm.kv_heads == 0, at("lm.kv_heads"), " does not divide ",
                at("lm.num_heads"), "; ", nearest_divisors(lm.num_heads, std::max<int64_t>(1, lm.kv_heads)), " heads");
  const int64_t head = lm.head_dim > 0 ? lm.head_dim : lm.hidden_size / lm.num_heads;
  check.require(lm.style == "prototype" || head % 2 == 0, "rotary positions turn pairs of values, but a head has ",
                head, " of them; change ", at("lm.num_heads"), " or ", at("lm.head_dim"));
  if (lm.arch == "decoder") {
    check.require(lm.style == "modern", at("lm.style"),
                  " has no plain decoder; set lm.style to modern, or lm.arch to hrm");
    for (const char* key : {"objective.deep_supervision", "objective.halting"}) {
      check.require(check.is_default_value(key), at(key), " belongs to the reasoning core, but ", at("lm.arch"),
                    "; leave it out");
    }
    check.require(!c.data.document_masks || c.data.encoder_len == 0, at("data.document_masks"), " and ",
                  at("data.encoder_len"), ": a row with a prompt is one document; set one of them to false or 0");
    check.require(moe.place == "auto" || moe.place == "decoder", at("moe.place"), ", but ", at("lm.arch"),
                  " has no encoder; set moe.place to decoder");
  } else {
    check.require(c.data.encoder_len > 0, at("data.encoder_len"), ", but ", at("lm.arch"),
                  " reads a prompt; set data.encoder_len to the longest one, e.g. 256");
    check.require(lm.gradient_cycles <= lm.h_cycles, at("lm.gradient_cycles"), " is more than ", at("lm.h_cycles"),
                  "; set it to 0 (all)");
    check.require(c.objective.deep_supervision == 0 || lm.h_cycles > 1, at("objective.deep_supervision"),
                  " is for earlier cycles, of which ", at("lm.h_cycles"), " has none; leave it out");
    check.require(lm.gate_scale > 0 || lm.gate_bias > 0, at("lm.gate_scale"), " and ", at("lm.gate_bias"),
                  ": the gate stays shut; set lm.gate_scale to 1");
  }
  if (lm.encoder == "mamba2" && lm.arch == "hrm") {
    check.require(lm.style == "modern", at("lm.encoder"), " is not of ", at("lm.style"),
                  "; set lm.style to modern, or lm.encoder to transformer");
    const int64_t inner = lm.mamba_expand * lm.hidden_size;
    check.require(inner % lm.mamba_head_dim == 0, at("lm.mamba_head_dim"), " does not divide mamba_expand * ",
                  at("lm.hidden_size"), "; ", nearest_divisors(inner, lm.mamba_head_dim), " channels");
    const int64_t heads = inner / lm.mamba_head_dim;
    check.require(heads % lm.mamba_groups == 0, at("lm.mamba_groups"), " does not divide the ", heads,
                  " heads of mamba2; ", nearest_divisors(heads, lm.mamba_groups));
    check.require(moe.experts == 0 || moe.place == "auto" || moe.place == "decoder", at("moe.place"), ", but ",
                  at("lm.encoder"), " has no feed-forward part; set moe.place to decoder");
  }
  if (lm.style == "prototype") {
    for (const char* key : {"lm.kv_heads", "lm.head_dim", "lm.inner", "lm.window", "lm.rope_theta", "lm.rms_norm_eps",
                            "lm.qk_norm", "lm.tied", "lm.recompute"}) {
      check.require(check.is_default_value(key), at(key), " is not of ", at("lm.style"),
                    "; leave it out, or set lm.style to modern");
    }
    check.require(moe.place == "auto" || moe.place == "encoder", at("moe.place"), ", but experts of ", at("lm.style"),
                  " stand in the encoder; set moe.place to encoder");
  }
  if (moe.experts == 0) {
    for (const std::string& key : differing_keys(c, Config())) {
      check.require(!key.starts_with("moe."), at(key.c_str()), " belongs to experts, but ", at("moe.experts"),
                    "; set moe.experts to e.g. 8");
    }
  } else {
    check.require(moe.top_k <= moe.experts, at("moe.top_k"), " is more than ", at("moe.experts"), "; set it to ",
                  moe.experts, " or less");
    const int64_t blocks = lm.style == "prototype" || moe.place == "encoder" ? lm.enc_layers : lm.layers;
    check.require(moe.every <= blocks, at("moe.every"), " leaves no block with experts, of ", blocks, "; set it to ",
                  blocks, " or less");
  }
}

// Settings of task language that were asked for and would change nothing.
void check_unread_language(const Checker& check, const Config& c) {
  const LmConfig& lm = c.lm;
  if (lm.arch == "decoder") {
    refuse_unread(check,
                  {"lm.encoder",
                   "lm.enc_layers",
                   "lm.h_layers",
                   "lm.l_layers",
                   "lm.h_len",
                   "lm.l_len",
                   "lm.h_cycles",
                   "lm.l_steps",
                   "lm.gradient_cycles",
                   "lm.bridge",
                   "lm.prefix_len",
                   "lm.gate_scale",
                   "lm.gate_bias",
                   "lm.gate_warmup_steps",
                   "lm.mamba_expand",
                   "lm.mamba_head_dim",
                   "lm.mamba_state",
                   "lm.mamba_groups",
                   "lm.mamba_kernel",
                   "lm.mamba_chunk",
                   "objective.halting_target"},
                  "lm.arch", "has neither an encoder nor a reasoning core", "set lm.arch to hrm");
    if (c.moe.experts > 0 && c.moe.every == 1) {
      refuse_unread(check, {"lm.inner"}, "moe.experts", "stand in every block in place of its SwiGLU",
                    "set moe.every to 2");
    }
    return;
  }
  check.require(!c.data.document_masks, check.at("data.document_masks"), " does not reach the decoder of ",
                check.at("lm.arch"), ", for which a row is one document; leave it out, or set lm.arch to decoder and ",
                "data.encoder_len to 0");
  if (lm.encoder != "mamba2") {
    refuse_unread(check,
                  {"lm.mamba_expand", "lm.mamba_head_dim", "lm.mamba_state", "lm.mamba_groups", "lm.mamba_kernel",
                   "lm.mamba_chunk"},
                  "lm.encoder", "is no mamba2", lm.style == "prototype" ? "" : "set lm.encoder to mamba2");
  }
  if (lm.bridge != "prefix") {
    refuse_unread(check, {"lm.prefix_len"}, "lm.bridge", "hands over one vector", "set lm.bridge to prefix");
  }
  if (lm.gate_scale == 0) {
    refuse_unread(check, {"lm.gate_warmup_steps"}, "lm.gate_scale", "is what it is in the warm-up, too",
                  "set lm.gate_scale to 1");
  }
  if (c.objective.halting == 0) {
    refuse_unread(check, {"objective.halting_target"}, "objective.halting", "gives the model no probability of halting",
                  "set objective.halting to 0.01");
  } else if (lm.gradient_cycles != 0 && lm.gradient_cycles != lm.h_cycles) {
    refuse_unread(check, {"lm.gradient_cycles"}, "objective.halting", "needs the gradient of all cycles",
                  "set lm.gradient_cycles to 0 (all)");
  }
}

void check_run(const Checker& check, const RunConfig& r) {
  const bool is_name = !r.name.empty() && r.name != "." && r.name != ".." && r.name.find('/') == std::string::npos &&
                       r.name.find('\0') == std::string::npos;
  check.require(is_name, check.at("run.name"), " cannot be the name of a folder in run.dir; use letters and digits");
  check.require(!r.name.starts_with('~'), check.at("run.name"),
                " begins with a tilde: whoever removes its folder may remove the home folder; choose another name");
  check.require(!r.dir.empty(), check.at("run.dir"), " is empty; set it to a folder, e.g. runs");
}

}  // namespace

bool belongs_to_another_task(const std::string& key, const std::string& task) {
  const std::string tasks = tasks_of(key);
  return !tasks.empty() && tasks.find(task) == std::string::npos;
}

void refuse_unread(const LoadedConfig& loaded, std::initializer_list<const char*> keys, const char* other,
                   const char* why, const std::string& way_out) {
  refuse_unread(Checker(loaded), keys, other, why, way_out);
}

void check_consistency(const LoadedConfig& loaded) {
  const Config& c = loaded.config;
  const Checker check(loaded);
  check_run(check, c.run);
  check_task(check, c);
  if (c.task == "language") check_lm(check, c);
  if (c.task == "polychromic") check_polychromic(check, c);
  if (c.task == "puzzle") {
    check_data(check, c.data);
    check_model(check, c.model);
  }
  check_schedule(check, c.optim, c.train);
  check_optim(check, c.optim, c.parallel);
  check_train(check, c.train);
  check_eval(check, c);
  if (c.task == "puzzle") check_recursions(check, c);
  check_arithmetic(check, c);
  check_profiling(check, c.profiling, c.train);
}

void validate(const LoadedConfig& loaded) {
  check_consistency(loaded);
  const Config& c = loaded.config;
  const Checker check(loaded);
  check.require(
      !c.data.train.empty(), check.at("data.train"),
      c.task == "language"
          ? " is empty; set it to a folder of language data ('hrm_train data --help' says how to make one)"
      : c.task == "polychromic"
          ? " is empty; set it to a file of JSON lines with prompts and responses, or a folder of them"
          : " is empty; set it to a dataset directory or a CSV file, or start from a configuration in configs/ with "
            "--config");
  check.require(c.train.steps > 0 || c.train.epochs > 0, check.at("train.steps"), " and ", check.at("train.epochs"),
                ": the run has no length; set train.steps or train.epochs");
  // Of a training alone: the configuration of a checkpoint is opened for other ends, too, and stays readable.
  const bool no_test = c.task == "puzzle" ? c.data.test.empty() : c.task == "language" && c.data.test == "none";
  const std::string evaluations = no_test ? "data.test" : "train.eval_every";
  check.require(
      !c.train.keep_best || (c.train.eval_every > 0 && !no_test) || !check.asked_beside("train.keep_best", evaluations),
      check.at("train.keep_best"), " chooses among evaluations, but ", check.at(evaluations),
      no_test ? " gives nothing to evaluate" : " makes one at the end alone", "; set ", evaluations,
      ", or train.keep_best to false");
  if (c.task == "language") check_unread_language(check, c);
  if (c.task == "polychromic") {
    check_rewards(check, c);
    check_unread_polychromic(check, c);
  }
}

}  // namespace hrm::config
