// The trainer's checkpoints: when they are written, and how a run continues from one.
#include <cstdlib>
#include <limits>
#include <sstream>

#include "hrm/base/error.h"
#include "hrm/base/log.h"
#include "hrm/base/text.h"
#include "hrm/checkpoint/checkpoint.h"
#include "hrm/ops/gemm_tuning.h"
#include "hrm/parallel/cut_entries.h"
#include "hrm/parallel/replicas.h"
#include "hrm/train/eval_reporter.h"
#include "hrm/train/trainer.h"
#include "train/early_stop.h"
#include "train/metric_window.h"
#include "train/run_checkpoints.h"
#include "train/step_guard.h"
#include "train/trainer_values.h"

namespace hrm::train {
namespace {

constexpr const char* kDigest = "digest of the ";  // in a checkpoint's information, before what it is of
using checkpoint::kNextBatch;

checkpoint::Keep keep_of(const config::TrainConfig& config) {
  return {config.keep_checkpoints, config.keep_every, config.keep_best};
}

}  // namespace

void Trainer::prepare_checkpoints() {
  if (run_dir_.empty() || std::exchange(prepared_, true)) return;
  best_score_ = -std::numeric_limits<double>::infinity();
  const checkpoint::Keep keep = keep_of(config_.train);
  checkpoints_ = std::make_unique<RunCheckpoints>(
      *this, *comm_, run_dir_,
      checkpoint::SaverOptions{
          .keep = keep, .asynchronous = config_.train.async_checkpoints, .before_commit = [this] { log_.sync(); }});
  std::string best;
  if (comm_->main()) {
    const uint64_t free = checkpoint::check_volume(run_dir_, checkpoints_->bytes(), keep);
    log::info("checkpoints  ", human_bytes(checkpoints_->bytes()), " each, ", human_bytes(free), " free");
    source_digests_ = task_.source_digests();
    best = cat(std::hexfloat, checkpoint::best_score(run_dir_).value_or(best_score_));
  }
  // As rank 0 sees the folder.
  best = comm_->all_gather_text(best)[0];
  best_score_ = std::strtod(best.c_str(), nullptr);
  if (config_.train.checkpoint_every > 0) checkpoints_->prepare_memory();
}

// The state of this moment begins its way to the disk.
void Trainer::save() {
  if (last_saved_step_ == step_) return;
  collect_metrics(/*wait=*/true);
  const double start = now_seconds();
  alive("checkpoint");
  check_replicas();
  checkpoints_->save(comm_->main() ? meta() : checkpoint::CheckpointMeta{step_, {}, {}});
  const int64_t lost = checkpoints_->lost_in_a_row(), most = config_.train.max_lost_checkpoints;
  require(most == 0 || lost < most, ExitCode::environment, "the last ", lost,
          " checkpoints could not be written (train.max_lost_checkpoints): ", checkpoints_->failure());
  parts_written_ = false;
  last_saved_step_ = step_;
  pause_over(start);
}

void Trainer::save_if_best() {
  if (!config_.train.keep_best || !(score_ > best_score_)) return;
  best_score_ = score_;
  save();
}

// Returns when the last checkpoint is on the disk; of several ranks on all.
void Trainer::finish_saving(double patience_s) {
  alive("checkpoint");
  checkpoints_->finish(patience_s);
}

// The algorithms of the matrix products go along: a resumed run must sum in the same order (ops/gemm_tuning.h).
checkpoint::CheckpointMeta Trainer::meta() {
  checkpoint::CheckpointMeta meta{step_, config_json_, task_.signature()};
  for (const auto& [what, digest] : source_digests_) meta.info[kDigest + what] = digest;
  meta.info[kNextBatch] = task_.next_batch_digest(step_ + 1);
  if (last_eval_step_ == step_) {
    std::ostringstream score;
    score.precision(17);
    score << score_;
    meta.info[checkpoint::kScore] = score.str();
  }
  if (ops::gemm_tuning() == ops::GemmTuning::off) return meta;
  if (const std::string choices = ops::gemm_choices(); !choices.empty()) meta.info[ops::kGemmChoices] = choices;
  return meta;
}

// A rank whose memory or arithmetic is at fault is found before it corrupts a checkpoint.
void Trainer::check_replicas() {
  parallel::check_replicas(*this, *comm_);
}

void Trainer::stop_diverged(int64_t step) {
  log::progress_done();
  const std::string what = nonfinite_in_a_row_ == 0 ? cat("the gradient of step ", step, " is not finite")
                                                    : cat("the gradients of steps ", step - nonfinite_in_a_row_, " to ",
                                                          step, " are not finite");
  constexpr const char* kAdvice = ". Lower optim.lr or set optim.grad_clip";
  if (run_dir_.empty()) fail(ExitCode::diverged, what, kAdvice);
  std::string dump;
  checkpoint::CheckpointMeta facts = meta();
  facts.step = step;
  alive("checkpoint");
  try {
    // What is on its way: the run resumes from it.
    checkpoints_->finish(kPatienceAtStop);
  } catch (const Error& e) {
    log::warn("the last checkpoint could not be written: ", e.what());
  }
  try {
    dump = checkpoints_->dump(run_dir_ / "diverged", facts).string();
    dump = cat("the weights before it and the state are in '", dump, "'");
  } catch (const Error& e) {
    dump = cat("no dump could be written: ", e.what());
  }
  if (!comm_->main()) fail(ExitCode::diverged, what, "; rank 0 says more");
  fail(ExitCode::diverged, what, "; ", dump, kAdvice, " (`hrm_train doctor --replay ", (run_dir_ / "diverged").string(),
       "` says where), then start again: the run resumes from its last checkpoint");
}

void Trainer::resume(const std::filesystem::path& checkpoint, const std::map<std::string, std::string>& info,
                     bool accept_data_change) {
  std::vector<std::string> optional = StepGuard::optional_state();
  optional.insert(optional.end(),
                  {MetricWindow::kStatePrefix, MetricWindow::kSwitchedStatePrefix, MetricWindow::kEarlierStatePrefix,
                   MetricWindow::kEarlierSwitchedStatePrefix, EarlyStop::kStatePrefix});
  const std::vector<std::string> of_task = task_.optional_state();
  optional.insert(optional.end(), of_task.begin(), of_task.end());
  checkpoint::load_checkpoint(checkpoint, *this, optional);
  check_sources(info, checkpoint, accept_data_change);
  if (shards_) shards_->gather();
  task_.parameters().refresh_compute();
  log_.truncate_after(step_);
  last_saved_step_ = step_;
  window_->resume_after(step_);
  if (const auto score = info.find(checkpoint::kScore); score != info.end()) score_ = std::stod(score->second);
}

void Trainer::start_from(const std::filesystem::path& checkpoint, const std::vector<std::string>& by_mean) {
  struct Weights : Stateful {
    explicit Weights(Trainer& of) : trainer(of) {}
    void visit_state(StateVisitor& visitor) override {
      parallel::CutEntries parts(trainer.cuts_, visitor);
      trainer.visit_weights(parts);
    }
    Trainer& trainer;
  };
  Weights weights(*this);
  checkpoint::load_weights_into(checkpoint, weights, checkpoint::WeightSet::ema_or_raw, by_mean);
  if (shards_) shards_->gather();
  start_fresh();
}

// Other data, or another order of them, would silently be another training.
void Trainer::check_sources(const std::map<std::string, std::string>& info, const std::filesystem::path& checkpoint,
                            bool accept_change) {
  std::vector<std::pair<std::string, std::string>> now;  // the sources first: where they differ, so does the batch
  for (const auto& [what, digest] : task_.source_digests()) now.emplace_back(kDigest + what, digest);
  now.emplace_back(kNextBatch, task_.next_batch_digest(step_ + 1));
  for (const auto& [key, digest] : now) {
    const auto then = info.find(key);
    if (then == info.end() || then->second == digest) continue;  // an earlier version wrote none
    const std::string what = key.substr(std::string(kDigest).size());
    // An adapter fits the weights that it was trained beside, and no flag makes it fit others.
    require(what != tasks::kFrozenModel, ExitCode::data, "the frozen model is not the one that the adapter of '",
            checkpoint.string(),
            "' was trained beside; give that model's folder with hf.model=FOLDER, and its "
            "hf.quantize");
    const std::string sentence =
        key == kNextBatch
            ? cat("the next batch after step ", step_, " is not the one that '", checkpoint.string(), "' announces")
            : cat("the ", what, " is not what '", checkpoint.string(), "' was trained with");
    require(accept_change, ExitCode::data, sentence,
            ": the data or their order changed; bring the old ones back, start another run.name (with --init of "
            "task puzzle it begins with these weights), or resume with these: --accept-data-change");
    log::warn(sentence, "; going on as --accept-data-change says");
  }
}

void Trainer::skip_after_rewind(int64_t spike_step, int64_t rewinds) {
  task_.skip_batches(spike_step - step_);
  rewinds_ = rewinds;
  last_saved_step_ = -1;
  prepare_checkpoints();
  save();
  finish_saving(kPatienceAtEnd);
}

void Trainer::visit_state(StateVisitor& visitor) {
  parallel::CutEntries parts(cuts_, visitor);
  visit_entries(parts);
}

// This rank's part of the task.
void Trainer::visit_weights(StateVisitor& visitor) {
  if (shards_) return shards_->visit_weights(task_, visitor);
  task_.visit_state(visitor);
}

void Trainer::visit_entries(StateVisitor& visitor) {
  visitor.integer("loop.step", step_);
  visitor.integer("loop.last_eval_step", last_eval_step_);
  window_->visit_state(visitor);
  visit_weights(visitor);
  optimizer_->visit_state(visitor);
  if (ema_) ema_->visit_state(visitor);
  if (shards_) shards_->visit_state(visitor);
  if (scaler_) scaler_->visit_state(visitor);
  guard_->visit_state(visitor);
  early_stop_->visit_state(visitor);
  if (config_.train.spike_action == config::SpikeAction::rewind) visitor.integer("guard.rewinds", rewinds_);
}

}  // namespace hrm::train
