#include "commands/plan/ranks.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <limits>

#include "hrm/base/error.h"
#include "hrm/parallel/gradient_reducer.h"
#include "hrm/parallel/parameter_shards.h"
#include "hrm/train/batch_split.h"
#include "hrm/train/trainer.h"

namespace hrm::commands {
namespace {

using Moment = StepExchange::Moment;

tasks::ModelOutline built_outline(const PlanInput& in) {
  tasks::ModelOutline outline = in.model->outline(in.config);
  outline.parameters->build(*outline.model, at::kFloat, outline.blocks_run_once);
  return outline;
}

}  // namespace

// In the order of Trainer::device_step and of the tasks.
std::vector<StepExchange> rehearse_step(const PlanInput& in) {
  const int64_t ranks = in.ranks, own = train::split_batch(in.config.train, ranks).own;
  if (ranks == 1) return {};
  const at::NoGradGuard no_grad;
  const std::shared_ptr<parallel::CountingComm> comm = parallel::make_fake_comm(0, static_cast<int>(ranks));
  const tasks::ModelOutline outline = built_outline(in);
  nn::ParameterSet& parameters = *outline.parameters;
  parallel::GradientReducer reducer(parameters, *comm, parallel::reducer_options(in.config.parallel));
  const auto values = [](at::IntArrayRef sizes, at::ScalarType dtype) {
    return at::empty(sizes, at::device(at::kMeta).dtype(dtype));
  };
  tasks::StepRehearsal step(comm);

  in.model->rehearse_begin(in, step);
  const auto groups = static_cast<int64_t>(parameters.gradient_ready()->groups().size());
  const int64_t accumulation = train::split_batch(in.config.train, ranks).accumulation;
  for (int64_t micro = reducer.every_micro_batch() ? 0 : accumulation - 1; micro < accumulation; ++micro) {
    const auto passes_left = static_cast<double>(accumulation - 1 - micro);
    reducer.begin(/*last_micro_batch=*/passes_left == 0);
    step.note("gradients", Moment::in_backward, -passes_left);  // what the pass before has left
    for (int64_t group = 0; group < groups - outline.unmarked_groups; ++group) {
      reducer.ready(static_cast<int>(group));
      step.note("gradients", Moment::in_backward, in.model->backward_done(in, group + 1, groups) - passes_left);
    }
  }
  comm->all_reduce(values({train::summed_values(ranks, outline.metric_sums)}, at::kDouble));
  step.note("metrics", Moment::after_backward);
  reducer.finish();
  step.note("gradients", Moment::in_backward);
  if (reducer.layout() != nullptr) {
    comm->all_gather(values({2 * ranks}, at::kFloat), values({2}, at::kFloat));
    step.note("gradient norm", Moment::after_backward);
    parallel::ParameterShards(parameters, *comm, reducer, in.config.optim.ema,
                              optim::moment_names(in.config.optim.name))
        .gather();
    step.note("weights", Moment::after_backward);
    comm->all_reduce(values({2}, at::kDouble));
    step.note("update ratio", Moment::after_backward);
  }
  in.model->rehearse_end(in, outline, own, step);
  return step.take();
}

int64_t rehearsed_gradient_bytes(const PlanInput& in) {
  const at::NoGradGuard no_grad;
  const auto comm = parallel::make_fake_comm(0, static_cast<int>(in.ranks));
  const tasks::ModelOutline outline = built_outline(in);
  return parallel::GradientReducer(*outline.parameters, *comm, parallel::reducer_options(in.config.parallel))
      .gradient_bytes();
}

RanksPlan make_ranks_plan(const RanksInput& in, int64_t ranks) {
  PlanInput alone = in.one;
  alone.ranks = 1;
  const Plan one = make_plan(alone);

  require(in.weak || in.one.config.train.global_batch_size % ranks == 0, ExitCode::usage,
          "train.global_batch_size = ", in.one.config.train.global_batch_size, " cannot be split over ", ranks,
          " ranks: choose a multiple of them, or with --weak that batch for each rank");

  RanksPlan plan;
  plan.layout = layout_of(ranks, in.per_node);
  plan.input = in.one;
  config::TrainConfig& train = plan.input.config.train;
  plan.input.ranks = ranks;
  if (in.weak) train.global_batch_size *= ranks;
  plan.own = make_plan(plan.input);
  plan.exchanges = rehearse_step(plan.input);

  // Time counts from the start of the last micro-batch's backward pass.
  const double backward = plan.own.backward_ms / static_cast<double>(train::split_batch(train, ranks).accumulation);
  double free = -std::numeric_limits<double>::infinity(), others = 0;
  for (const StepExchange& exchange : plan.exchanges) {
    const double ms = 1e3 * collective_seconds(in.links, exchange.operation, plan.layout);
    plan.exchange_ms.push_back(ms);
    plan.comm_ms += ms;
    if (exchange.moment == Moment::in_backward) {
      free = std::max(free, exchange.ready * backward) + ms;
    } else {
      others += ms;
    }
    const LinkBytes sent = link_bytes(exchange.operation, plan.layout);
    plan.sent.node += sent.node;
    plan.sent.network += sent.network;
  }
  plan.exposed_ms = std::max(free - backward, 0.0) + others;
  plan.step_ms = plan.own.step_ms + plan.exposed_ms;
  const auto rate = [](int64_t samples, double ms) { return static_cast<double>(samples) / (1e-3 * ms); };
  plan.samples_per_s = rate(train.global_batch_size, plan.step_ms);
  plan.efficiency =
      plan.samples_per_s / static_cast<double>(ranks) / rate(alone.config.train.global_batch_size, one.step_ms);
  return plan;
}

}  // namespace hrm::commands
