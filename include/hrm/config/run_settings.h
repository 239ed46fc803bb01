#pragma once
// Settings of the run, the training loop and the evaluation: sections run, train and eval.

#include <cstdint>
#include <string>

#include "hrm/config/field.h"

namespace hrm::config {

// Settings of sampled answers in an evaluation.
inline const ReadWhen kSampledAnswers{
    .key = "eval.answers", .values = {"0"}, .why = "samples none", .way_out = "set eval.answers to 10", .unless = true};
inline const ReadWhen kSpikes{.key = "train.spike_score",
                              .values = {"0"},
                              .why = "looks for no spikes",
                              .way_out = "set train.spike_score to 6",
                              .unless = true};

struct RunConfig {
  std::string name = "run";
  std::string dir = "runs";
  int64_t seed = 0;
  bool group_readable = false;

  template <class F>
  static void describe(F&& f) {
    f("name", &RunConfig::name, AnyText{}, "", "name of the run; its folder is <dir>/<name>");
    f("dir", &RunConfig::dir, PathText{}, "", "folder that holds all runs");
    f("group_readable", &RunConfig::group_readable, Flag{}, "",
      "let the user's group read what the run writes; false = nobody else does (0700)");
    f("seed", &RunConfig::seed, IntRange{0}, "", "seed of initialisation, sample order, augmentation and exploration",
      Resume::fixed);
  }
};

enum class SpikeAction { skip, rewind };
template <>
struct EnumNames<SpikeAction> {
  static constexpr const char* kNames[] = {"skip", "rewind"};
};

struct TrainConfig {
  int64_t global_batch_size = 768;
  int64_t micro_batch_size = 0;
  int64_t steps = 0;
  double epochs = 0;
  double max_seconds = 0;
  int64_t log_every = 10;
  int64_t eval_every = 0;
  int64_t checkpoint_every = 0;
  int64_t keep_checkpoints = 3;
  int64_t keep_every = 0;
  bool keep_best = false;
  int64_t early_stop_evals = 0;
  double early_stop_delta = 0;
  bool async_checkpoints = true;
  int64_t max_lost_checkpoints = 10;
  int64_t max_nonfinite_steps = 20;
  double spike_score = 0;
  int64_t spike_window = 128;
  SpikeAction spike_action = SpikeAction::skip;
  int64_t spike_rewind_steps = 100;
  double stuck_after_s = 900;

  template <class F>
  static void describe(F&& f) {
    f("global_batch_size", &TrainConfig::global_batch_size, IntRange{1, 1 << 24}, "samples",
      "samples of one optimizer step = micro_batch_size * accumulation * ranks", Resume::fixed);
    f("micro_batch_size", &TrainConfig::micro_batch_size, IntRange{0, 1 << 24}, "samples",
      "samples of one forward and backward pass; must divide global_batch_size; 0 = all of them");
    f("steps", &TrainConfig::steps, IntRange{0}, "steps", "optimizer steps of the whole run; 0 = from epochs");
    f("epochs", &TrainConfig::epochs, RealRange{0, 1e12}, "epochs",
      "passes over the training groups; used when steps is 0");
    f("max_seconds", &TrainConfig::max_seconds, RealRange{0, 1e9}, "s",
      "stop and save after this much training time in this process, exit code 75; 0 = no limit");
    f("log_every", &TrainConfig::log_every, IntRange{1}, "steps", "steps between two lines of metrics");
    f("eval_every", &TrainConfig::eval_every, IntRange{0}, "steps",
      "steps between two evaluations; the end of the run is always evaluated; 0 = only there");
    f("checkpoint_every", &TrainConfig::checkpoint_every, IntRange{0}, "steps",
      "steps between two checkpoints; the end of the run is always saved; 0 = only there");
    f("keep_checkpoints", &TrainConfig::keep_checkpoints, IntRange{1}, "checkpoints", "newest checkpoints to keep");
    f("keep_every", &TrainConfig::keep_every, IntRange{0}, "steps",
      "also keep the checkpoints whose step is a multiple of this; 0 = none");
    f("keep_best", &TrainConfig::keep_best, Flag{}, "",
      "also save after an evaluation that is better than all before, and keep that checkpoint (puzzles: exact "
      "accuracy, language and polychromic: loss, of the weights that eval.weights names first)");
    f("early_stop_evals", &TrainConfig::early_stop_evals, IntRange{0}, "evaluations",
      "end the run when so many evaluations in a row were no better than the best before; 0 = never");
    f("early_stop_delta", &TrainConfig::early_stop_delta, RealRange{0, 1e9}, "",
      "how much better an evaluation must be to count for early_stop_evals");
    f("async_checkpoints", &TrainConfig::async_checkpoints, Flag{}, "",
      "copy the state between two steps and write the copy while training goes on (a second copy of the state in host "
      "memory); false = training waits for the disk");
    f("max_lost_checkpoints", &TrainConfig::max_lost_checkpoints, IntRange{0}, "checkpoints",
      "a checkpoint that cannot be written (full disk) is tried again until the next one is due; stop with code 3 when "
      "so many in a row could not; 0 = train on whatever happens");
    f("max_nonfinite_steps", &TrainConfig::max_nonfinite_steps, IntRange{1}, "steps",
      "a step whose gradient is infinite or NaN is left out; stop with code 6 and a dump when so many in a row were, "
      "or the last one was; 1 = at the first");
    f("spike_score", &TrainConfig::spike_score, RealRange{0, 1e6}, "standard deviations",
      "a step is a spike when its loss stands this far above the mean of the last spike_window losses, e.g. 6; 0 = "
      "nothing is one");
    f("spike_window", &TrainConfig::spike_window, IntRange{8, 100000}, "steps",
      "losses that a spike is measured against", Resume::fixed, kSpikes);
    f("spike_action", &TrainConfig::spike_action, Choice<SpikeAction>{}, "",
      "skip = a spike's update is left out; rewind = also go back to a checkpoint of at least spike_rewind_steps "
      "before and on without the batches from there to the spike (three times at most)",
      kSpikes);
    f("spike_rewind_steps", &TrainConfig::spike_rewind_steps, IntRange{0}, "steps",
      "how far before the spike the checkpoint must lie, at least", kSpikes,
      ReadWhen{"train.spike_action", {"rewind"}, "goes back nowhere", "set train.spike_action to rewind"});
    f("stuck_after_s", &TrainConfig::stuck_after_s, RealRange{0, 1e6}, "s",
      "a step, an evaluation's batch or a checkpoint that takes longer is stuck: log where the program hangs and end "
      "it with code 7; 0 = wait for ever. With several ranks also parallel.timeout_s");
  }
};

enum class EvalWeights { automatic, raw, ema, both };
template <>
struct EnumNames<EvalWeights> {
  static constexpr const char* kNames[] = {"auto", "raw", "ema", "both"};
};

struct EvalConfig {
  int64_t batch_size = 0;
  int64_t max_samples = 0;
  int64_t segments = 0;
  bool early_halt = false;
  EvalWeights weights = EvalWeights::automatic;
  int64_t answers = 10;
  double answer_temperature = 0.7;
  double answer_top_p = 0.9;
  int64_t answer_tokens = 100;

  template <class F>
  static void describe(F&& f) {
    f("batch_size", &EvalConfig::batch_size, IntRange{0, 1 << 24}, "samples",
      "rows of one evaluation batch. 0 = for puzzles up to 2048 on a GPU as far as its memory allows, 256 on the CPU, "
      "half as many with early_halt; for other tasks the micro-batch of training, 8 for 'hrm_train eval' of task "
      "polychromic");
    f("max_samples", &EvalConfig::max_samples, IntRange{0}, "samples",
      "evaluate this many test samples, spread evenly over the set; 0 = all");
    f("segments", &EvalConfig::segments, IntRange{0, 65535}, "segments", "reasoning segments; 0 = halt_max_steps",
      Tasks{"puzzle"});
    f("early_halt", &EvalConfig::early_halt, Flag{}, "",
      "a sample stops as soon as the model's own rule halts it, and the next one takes its place; false = every sample "
      "runs all segments, as the published numbers do",
      Tasks{"puzzle"});
    f("weights", &EvalConfig::weights, Choice<EvalWeights>{}, "",
      "which weights to evaluate; auto = the average where there is one");
    f("answers", &EvalConfig::answers, IntRange{0, 1024}, "answers",
      "task=polychromic, 'hrm_train eval' alone: sampled to each prompt, for pass@k and diversity; 0 = none",
      Tasks{"polychromic"});
    f("answer_temperature", &EvalConfig::answer_temperature, RealRange{0, 1e3, true}, "", "of these answers",
      Tasks{"polychromic"}, kSampledAnswers);
    f("answer_top_p", &EvalConfig::answer_top_p, RealRange{0, 1, true}, "",
      "sample them from the fewest tokens of this probability", Tasks{"polychromic"}, kSampledAnswers);
    f("answer_tokens", &EvalConfig::answer_tokens, IntRange{1, 1 << 20}, "tokens", "the longest of them",
      Tasks{"polychromic"}, kSampledAnswers);
  }
};

}  // namespace hrm::config
