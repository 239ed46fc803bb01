// The row of task=puzzle.
#include "tasks/puzzle/spec.h"

#include "hrm/base/error.h"
#include "hrm/data/dataset.h"
#include "hrm/data/device_table.h"
#include "hrm/tasks/puzzle.h"
#include "tasks/puzzle/plan.h"
#include "tasks/specs.h"
#include "tasks/task_settings.h"

namespace hrm::tasks {
namespace {

PlannedModel plan_puzzle(const config::Config& config, const PlanData& data) {
  const auto planned = [&](const data::PuzzleMeta& meta) {
    return std::make_shared<PuzzlePlan>(config.model.arch, models::resolve_dims(config.model, meta));
  };
  require((data.seq_len > 0) == (data.vocab_size > 0), ExitCode::usage,
          "--seq-len and --vocab-size describe the data together; give both or none");
  if (data.seq_len > 0) return {planned({.vocab_size = data.vocab_size, .seq_len = data.seq_len})};
  require(!config.data.train.empty(), ExitCode::usage, "data.train is empty; give data, or --seq-len and --vocab-size");
  const auto dataset =
      data::open_dataset(config.data.train, "train", config.data, static_cast<uint64_t>(config.run.seed));
  const bool table = data::use_device_table(config, *dataset, at::Device(at::kCUDA, 0));
  return {planned(dataset->meta()), table ? dataset->num_stored() : 0};
}

std::unique_ptr<Task> make_puzzle(const config::Config& config, const Runtime& runtime,
                                  std::shared_ptr<parallel::Comm> comm) {
  return std::make_unique<PuzzleTask>(config, runtime, std::move(comm));
}

}  // namespace

const TaskSpec& puzzle_spec() {
  static const TaskSpec spec{
      .settings = &config::puzzle_settings(),
      .make = make_puzzle,
      .model_name = [](const config::Config& config) { return std::string(name_of(config.model.arch)); },
      .begins_with_weights = true,
      // How long a model thinks is a choice of each training.
      .free_at_init = {"model.H_cycles", "model.L_cycles", "model.halt_max_steps", "model.halt_exploration_prob",
                       "model.no_ACT_continue", "model.depth_curriculum", "model.gradient_cycles",
                       "model.loss_every_cycle", "model.recompute", "model.start_std", "model.path_noise",
                       "model.damping"},
      .evaluate = evaluate_puzzles,
      .export_as = export_puzzle,
      .plan = plan_puzzle};
  return spec;
}

}  // namespace hrm::tasks
