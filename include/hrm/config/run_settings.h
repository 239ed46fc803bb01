#pragma once
// Settings of the run, the training loop and the evaluation: sections run, train and eval.

#include <cstdint>
#include <string>

#include "hrm/config/field.h"

namespace hrm::config {

// Settings of completions in an evaluation.
inline const ReadWhen kSampledAnswers{
    .key = "eval.answers", .values = {"0"}, .why = "samples none", .way_out = "set eval.answers to 10", .unless = true};
inline const ReadWhen kSeveralRollouts{.key = "eval.rollouts",
                                       .values = {"1"},
                                       .why = "has nothing to choose",
                                       .way_out = "set eval.rollouts to 16",
                                       .unless = true};
inline const ReadWhen kEarlyHalt{.key = "eval.early_halt",
                                 .values = {"false"},
                                 .why = "runs all segments",
                                 .way_out = "set eval.early_halt to true",
                                 .unless = true};
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
  std::string on_event = "";

  template <class F>
  static void describe(F&& f) {
    f("name", &RunConfig::name, AnyText{}, "", "name of the run, which writes to <dir>/<name>");
    f("dir", &RunConfig::dir, PathText{}, "", "folder that holds all runs");
    f("group_readable", &RunConfig::group_readable, Flag{}, "",
      "let the user's group read what the run writes; false = only the user can (mode 0700)");
    f("on_event", &RunConfig::on_event, AnyText{}, "",
      "run this shell command when a training has finished, stopped, diverged, is stuck or failed; empty = nothing. It "
      "gets the event as JSON on standard input, and 10 s; a failure is a warning in the log");
    f("seed", &RunConfig::seed, IntRange{0}, "", "seeds initialisation, sample order, augmentation and exploration",
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
      "samples of one optimizer step: micro_batch_size * accumulation * ranks", Resume::fixed);
    f("micro_batch_size", &TrainConfig::micro_batch_size, IntRange{0, 1 << 24}, "samples",
      "samples of one forward and backward pass on one rank, which must divide global_batch_size; 0 = all of them");
    f("steps", &TrainConfig::steps, IntRange{0}, "steps", "optimizer steps of the whole run; 0 = as train.epochs says");
    f("epochs", &TrainConfig::epochs, RealRange{0, 1e12}, "epochs",
      "passes over the training groups; used if train.steps is 0");
    f("max_seconds", &TrainConfig::max_seconds, RealRange{0, 1e9}, "s",
      "save and stop with exit code 75 after this much training time in this process; 0 = no limit");
    f("log_every", &TrainConfig::log_every, IntRange{1}, "steps", "steps between two lines of metrics");
    f("eval_every", &TrainConfig::eval_every, IntRange{0}, "steps",
      "steps between two evaluations. The end of the run is always evaluated; 0 = only the end");
    f("checkpoint_every", &TrainConfig::checkpoint_every, IntRange{0}, "steps",
      "steps between two checkpoints. The end of the run is always saved; 0 = only the end");
    f("keep_checkpoints", &TrainConfig::keep_checkpoints, IntRange{1}, "checkpoints",
      "keep this many of the newest checkpoints");
    f("keep_every", &TrainConfig::keep_every, IntRange{0}, "steps",
      "also keep checkpoints whose step is a multiple of this; 0 = none");
    f("keep_best", &TrainConfig::keep_best, Flag{}, "",
      "also save after the best evaluation so far, and keep that checkpoint. Best means exact accuracy for puzzles and "
      "loss for other tasks, of the first weights that eval.weights names");
    f("early_stop_evals", &TrainConfig::early_stop_evals, IntRange{0}, "evaluations",
      "end the run after this many evaluations in a row without improvement; 0 = never");
    f("early_stop_delta", &TrainConfig::early_stop_delta, RealRange{0, 1e9}, "",
      "an evaluation must be better by this much to count as an improvement for early_stop_evals");
    f("async_checkpoints", &TrainConfig::async_checkpoints, Flag{}, "",
      "write checkpoints while training continues, from a second copy of the state in host memory; false = training "
      "waits for the disk");
    f("max_lost_checkpoints", &TrainConfig::max_lost_checkpoints, IntRange{0}, "checkpoints",
      "stop with exit code 3 after this many checkpoints in a row could not be written (full disk); 0 = never stop. A "
      "failed checkpoint is retried until the next one is due");
    f("max_nonfinite_steps", &TrainConfig::max_nonfinite_steps, IntRange{1}, "steps",
      "stop with exit code 6 and a dump after this many steps in a row with an infinite or NaN gradient; 1 = at the "
      "first. Such a step is skipped, and the last step of a run must be finite");
    f("spike_score", &TrainConfig::spike_score, RealRange{0, 1e6}, "standard deviations",
      "a step is a spike if its loss is this far above the mean of the last spike_window losses, e.g. 6; 0 = never");
    f("spike_window", &TrainConfig::spike_window, IntRange{8, 100000}, "steps",
      "number of past losses that a spike is compared with", Resume::fixed, kSpikes);
    f("spike_action", &TrainConfig::spike_action, Choice<SpikeAction>{}, "",
      "skip = leave out the update of a spike; rewind = also return to a checkpoint at least spike_rewind_steps "
      "earlier and skip the batches up to the spike, three times at most",
      kSpikes);
    f("spike_rewind_steps", &TrainConfig::spike_rewind_steps, IntRange{0}, "steps",
      "minimum distance between the spike and the checkpoint that rewind returns to", kSpikes,
      ReadWhen{"train.spike_action", {"rewind"}, "goes back nowhere", "set train.spike_action to rewind"});
    f("stuck_after_s", &TrainConfig::stuck_after_s, RealRange{0, 1e6}, "s",
      "log where the program hangs and end it with exit code 7 if a step, an evaluation batch or a checkpoint takes "
      "longer; 0 = wait forever. Several ranks also use parallel.timeout_s");
  }
};

enum class EvalWeights { automatic, raw, ema, both };
template <>
struct EnumNames<EvalWeights> {
  static constexpr const char* kNames[] = {"auto", "raw", "ema", "both"};
};

// The state of a reasoner that rollouts add noise to.
enum class NoisyState { z_L, z_H };
template <>
struct EnumNames<NoisyState> {
  static constexpr const char* kNames[] = {"z_L", "z_H"};
};

// How one of several rollouts is chosen.
enum class RolloutSelector { q, majority, residual, settled, first };
template <>
struct EnumNames<RolloutSelector> {
  static constexpr const char* kNames[] = {"q", "majority", "residual", "settled", "first"};
};

struct EvalConfig {
  int64_t batch_size = 0;
  int64_t max_samples = 0;
  int64_t segments = 0;
  bool early_halt = false;
  int64_t rollouts = 1;
  int64_t agreeing_rollouts = 0;
  double noise = 0.1;
  NoisyState noisy_state = NoisyState::z_L;
  RolloutSelector selector = RolloutSelector::q;
  int64_t residual_window = 3;
  EvalWeights weights = EvalWeights::automatic;
  int64_t answers = 10;
  double answer_temperature = 0.7;
  double answer_top_p = 0.9;
  int64_t answer_tokens = 100;

  template <class F>
  static void describe(F&& f) {
    f("batch_size", &EvalConfig::batch_size, IntRange{0, 1 << 24}, "samples",
      "rows of one evaluation batch. 0 = for puzzles up to 2048 on a GPU as memory allows, 256 on a CPU, half of that "
      "with early_halt; a rollout counts as a row; for other tasks train.micro_batch_size, and 8 for 'hrm_train eval' "
      "of task polychromic");
    f("max_samples", &EvalConfig::max_samples, IntRange{0}, "samples",
      "evaluate this many test samples, spread evenly over the set; 0 = all");
    f("segments", &EvalConfig::segments, IntRange{0, 65535}, "segments",
      "reasoning segments of an evaluation; 0 = model.halt_max_steps", Tasks{"puzzle"});
    f("early_halt", &EvalConfig::early_halt, Flag{}, "",
      "stop a sample when the model's own rule halts it, and give its slot to the next one; with rollouts as "
      "eval.agreeing_rollouts says; false = run all segments, as published numbers do",
      Tasks{"puzzle"});
    f("rollouts", &EvalConfig::rollouts, IntRange{1, 32768}, "rollouts",
      "rollouts of each puzzle, one of which is chosen; the first has no noise and is what 1 rollout gives",
      Tasks{"puzzle"});
    f("agreeing_rollouts", &EvalConfig::agreeing_rollouts, IntRange{0, 32768}, "rollouts",
      "stop a puzzle with several rollouts when this many of them have the same answer and the model's own rule halts "
      "them; the answer is then one of these; 0 = half of the rollouts, but at least 2",
      Tasks{"puzzle"}, kEarlyHalt);
    f("noise", &EvalConfig::noise, RealRange{0, 100}, "",
      "standard deviation of the noise that rollouts add to their state before each segment", Tasks{"puzzle"},
      kSeveralRollouts);
    f("noisy_state", &EvalConfig::noisy_state, Choice<NoisyState>{}, "",
      "the state that rollouts add noise to: of z_L only the first update of a segment reads it, of z_H all updates of "
      "the first cycle; model.arch transformer and urm read z_H alone",
      Tasks{"puzzle"}, kSeveralRollouts);
    f("selector", &EvalConfig::selector, Choice<RolloutSelector>{}, "",
      "choose the rollout by: q = largest Q value; majority = most frequent answer; residual = smallest change of the "
      "logits in the last segments; settled = answer unchanged for longest; first = the one without noise",
      Tasks{"puzzle"}, kSeveralRollouts);
    f("residual_window", &EvalConfig::residual_window, IntRange{1, 1024}, "segments",
      "last segments that the residual of a rollout is the mean of", Tasks{"puzzle"}, kSeveralRollouts);
    f("weights", &EvalConfig::weights, Choice<EvalWeights>{}, "",
      "which weights are evaluated: raw, ema or both; auto = the EMA if there is one");
    f("answers", &EvalConfig::answers, IntRange{0, 1024}, "answers",
      "completions sampled for each prompt by 'hrm_train eval' of task polychromic, for pass@k and diversity; 0 = none",
      Tasks{"polychromic"});
    f("answer_temperature", &EvalConfig::answer_temperature, RealRange{0, 1e3, true}, "",
      "divide logits by this temperature when an evaluation samples completions", Tasks{"polychromic"},
      kSampledAnswers);
    f("answer_top_p", &EvalConfig::answer_top_p, RealRange{0, 1, true}, "",
      "sample these completions from the smallest set of tokens with this total probability", Tasks{"polychromic"},
      kSampledAnswers);
    f("answer_tokens", &EvalConfig::answer_tokens, IntRange{1, 1 << 20}, "tokens",
      "maximum length of these completions", Tasks{"polychromic"}, kSampledAnswers);
  }
};

}  // namespace hrm::config
