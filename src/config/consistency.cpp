#include "consistency.h"

#include <algorithm>
#include <string>
#include <utility>

#include "hrm/base/text.h"
#include "hrm/config/check.h"
#include "hrm/config/schema.h"
#include "hrm/config/task_settings.h"

namespace hrm::config {
namespace {

void check_schedule(const Checker& check, const OptimConfig& o, const TrainConfig& t) {
  check.require(t.steps == 0 || o.warmup_steps <= t.steps, check.at("optim.warmup_steps"), " is longer than ",
                check.at("train.steps"),
                ", so the learning rate would never reach optim.lr; set optim.warmup_steps to ", t.steps / 10,
                " or so");
  if (o.schedule != Schedule::wsd) {
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
  if (o.name != OptimizerKind::muon) return;
  check.require(o.lr > 0, check.at("optim.lr"), " is not a rate for ", check.at("optim.name"),
                "; set optim.lr to e.g. 0.02");
  check.require(p.zero == 0, check.at("optim.name"), " works on whole matrices, of which ", check.at("parallel.zero"),
                " gives each rank a slice; set parallel.zero to 0");
  check.require(p.tensor == 1, check.at("optim.name"), " works on whole matrices, of which ",
                check.at("parallel.tensor"), " gives each rank a part; set parallel.tensor to 1");
}

// What holds for every task; tasks say which of their models can be cut.
void check_tensor(const Checker& check, const Config& c) {
  if (c.parallel.tensor == 1) return;
  check.require(c.precision.blocks == BlockPrecision::same, check.at("parallel.tensor"), " does not go with ",
                check.at("precision.blocks"),
                ", whose scales are those of whole weights; set precision.blocks to same");
  check.require(c.precision.fake_quantize == FakeQuantization::none, check.at("parallel.tensor"), " does not go with ",
                check.at("precision.fake_quantize"),
                ", whose scales are those of whole weights; set precision.fake_quantize to none");
}

void check_groups(const Checker& check, const ParallelConfig& p) {
  check.require(p.replicas == 1 || p.zero > 0, check.at("parallel.replicas"),
                " makes groups of ranks that split a state, but ", check.at("parallel.zero"),
                " splits nothing; set parallel.zero to 1, 2 or 3, or parallel.replicas to 1");
}

// What reads the weights of all blocks at once.
void check_weights_in_turn(const Checker& check, const Config& c) {
  if (c.parallel.zero < 3) return;
  check.require(c.precision.blocks != BlockPrecision::fp8, check.at("precision.blocks"),
                " quantises the weights of all blocks before a step, but with ", check.at("parallel.zero"),
                " few blocks are on a rank at a time; set parallel.zero to 2, or precision.blocks to same");
  check.require(c.precision.fake_quantize == FakeQuantization::none, check.at("precision.fake_quantize"),
                " rounds whole weights after a step, but with ", check.at("parallel.zero"),
                " a rank has slices of them; set parallel.zero to 2, or precision.fake_quantize to none");
}

void check_train(const Checker& check, const TrainConfig& t) {
  if (t.micro_batch_size > 0) {
    check.require(t.global_batch_size % t.micro_batch_size == 0, check.at("train.micro_batch_size"),
                  " does not divide ", check.at("train.global_batch_size"), "; ",
                  nearest_divisors(t.global_batch_size, t.micro_batch_size));
  }
}

void check_eval(const Checker& check, const Config& c) {
  const TaskSettings& task = task_settings(c);
  const bool no_test = task.may_evaluate != nullptr && !task.may_evaluate(c);
  check.require(c.train.eval_every == 0 || !no_test, check.at("train.eval_every"), " asks for evaluations, but ",
                check.at("data.test"), "; set data.test to ", task.test_data, ", or train.eval_every to 0");
  check.require(c.train.early_stop_evals == 0 || c.train.eval_every > 0, check.at("train.early_stop_evals"),
                " counts evaluations, but ", check.at("train.eval_every"),
                " makes one at the end alone; set train.eval_every, or train.early_stop_evals to 0");
  check.require(c.train.early_stop_delta == 0 || c.train.early_stop_evals > 0, check.at("train.early_stop_delta"),
                " has nothing to judge: ", check.at("train.early_stop_evals"),
                "; set train.early_stop_evals to e.g. 5");
  const bool wants_average = c.eval.weights == EvalWeights::ema || c.eval.weights == EvalWeights::both;
  check.require(!wants_average || c.optim.ema > 0, check.at("eval.weights"), " needs averaged weights, but ",
                check.at("optim.ema"), " keeps none; set optim.ema to e.g. 0.999, or eval.weights to auto");
}

void check_arithmetic(const Checker& check, const Config& c) {
  check.require(c.precision.fake_quantize == FakeQuantization::none || c.precision.blocks == BlockPrecision::same,
                check.at("precision.fake_quantize"), " and ", check.at("precision.blocks"),
                " both say what the blocks' products read; set precision.blocks to same, or precision.fake_quantize to "
                "none");
  if (!c.runtime.deterministic) return;
  check.require(c.runtime.sdpa != SdpaBackend::cudnn && c.runtime.sdpa != SdpaBackend::efficient,
                check.at("runtime.sdpa"), " adds its gradients in no fixed order, against ",
                check.at("runtime.deterministic"), "; set runtime.sdpa to auto, flash or math");
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

// Settings of another task: they would do nothing.
void check_task(const Checker& check, const Config& c) {
  for (const std::string& key : differing_keys(c, Config())) {
    const Field& field = *find_field(key);
    if (is_read_by(field, c.task)) continue;
    std::string tasks;
    for (const std::string& task : field.tasks) tasks += (tasks.empty() ? "" : " and ") + task;
    check.require(check.by_default(key), check.at(key), " belongs to task ", tasks, ", but ", check.at("task"),
                  "; leave it out");
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

// Settings that somebody asked for and that nothing reads beside what else was asked for.
void check_unread(const Checker& check, const Config& c) {
  for (const Field& field : fields()) {
    if (!is_read_by(field, c.task)) continue;
    for (const ReadWhen& condition : field.read_when) {
      // A condition on a key of another task says nothing about this one.
      if (!is_read_by(*find_field(condition.key), c.task) || holds(condition, c)) continue;
      check.refuse_unread({field.key.c_str()}, condition.key, condition.why, condition.way_out);
      break;
    }
  }
}

}  // namespace

void check_consistency(const LoadedConfig& loaded) {
  const Config& c = loaded.config;
  const Checker check(loaded);
  check_run(check, c.run);
  check_task(check, c);
  if (const auto rules = task_settings(c).check) rules(check);
  check_schedule(check, c.optim, c.train);
  check_optim(check, c.optim, c.parallel);
  check_tensor(check, c);
  check_groups(check, c.parallel);
  check_weights_in_turn(check, c);
  check_train(check, c.train);
  check_eval(check, c);
  check_arithmetic(check, c);
  check_profiling(check, c.profiling, c.train);
}

void validate(const LoadedConfig& loaded) {
  check_consistency(loaded);
  const Config& c = loaded.config;
  const TaskSettings& task = task_settings(c);
  const Checker check(loaded);
  check.require(!c.data.train.empty(), check.at("data.train"), " is empty; set it to ", task.train_data);
  check.require(c.train.steps > 0 || c.train.epochs > 0, check.at("train.steps"), " and ", check.at("train.epochs"),
                ": the run has no length; set train.steps or train.epochs");
  // Only of a training: the configuration of a checkpoint is opened for other ends, too, and stays readable.
  const bool no_test = task.may_evaluate != nullptr && !task.may_evaluate(c);
  const std::string evaluations = no_test ? "data.test" : "train.eval_every";
  check.require(
      !c.train.keep_best || (c.train.eval_every > 0 && !no_test) || !check.asked_beside("train.keep_best", evaluations),
      check.at("train.keep_best"), " chooses among evaluations, but ", check.at(evaluations),
      no_test ? " gives nothing to evaluate" : " makes one at the end alone", "; set ", evaluations,
      ", or train.keep_best to false");
  check_unread(check, c);
  if (task.check_run != nullptr) task.check_run(check);
}

}  // namespace hrm::config
