#include "commands/plan/ranks.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <limits>

#include "hrm/base/error.h"
#include "hrm/parallel/gradient_reducer.h"
#include "hrm/train/batch_split.h"
#include "hrm/train/trainer.h"
#include "tasks/plan/step.h"

namespace hrm::commands {
namespace {

using Moment = StepExchange::Moment;

tasks::ModelOutline built_outline(const PlanInput& in) {
  tasks::ModelOutline outline = in.model->outline(in.config);
  // Fake-quantised weights, and those that fp8 blocks cast where they are read, travel as float32 masters.
  const bool casts = in.config.precision.blocks == config::BlockPrecision::fp8 && !outline.fp8_copies;
  const bool wide = casts || in.config.precision.fake_quantize != config::FakeQuantization::none;
  const bool spread = in.ranks > 1 && in.config.parallel.zero > 0 && !wide;
  const at::ScalarType dtype = spread ? tasks::planned_compute_dtype(in.config) : at::kFloat;
  nn::keep_frozen_as(*outline.model, dtype);
  outline.parameters->build(*outline.model, dtype, outline.blocks_run_once);
  return outline;
}

// The passes of one micro-batch over the groups, in the order of training.
class GroupPasses {
 public:
  explicit GroupPasses(const tasks::ModelOutline& outline)
      : set_(*outline.parameters), groups_(static_cast<int>(outline.parameters->gradient_ready()->groups().size())) {
    forward_ = outline.block_uses;
    for (int group = groups_; group-- > 0 && outline.block_uses.empty();) {
      if (set_.reports_use(group)) forward_.push_back(group);
    }
    // The block of the last group that is not marked has a gradient itself.
    const auto unmarked = static_cast<int>(outline.unmarked_groups);
    first_recorded_ = groups_ - std::max(unmarked - 1, 0);
    first_unmarked_ = groups_ - unmarked;
  }

  const std::vector<int>& forward() const { return forward_; }

  // use(group): the pass reaches a block; complete(group): its gradients are.
  template <class Use, class Complete>
  void backward(const Use& use, const Complete& complete) const {
    std::vector<int> left(static_cast<size_t>(groups_), 1);
    for (const int group : forward_) left[static_cast<size_t>(group)] = 0;
    for (const int group : forward_) ++left[static_cast<size_t>(group)];
    const auto done = [&](int group) {
      if (--left[static_cast<size_t>(group)] == 0 && group < first_unmarked_) complete(group);
    };
    int next = 0;  // of those that do not report
    const auto others_before = [&](int end) {
      for (; next < end; ++next) {
        if (!set_.reports_use(next)) done(next);
      }
    };
    for (size_t i = forward_.size(); i-- > 0;) {
      const int group = forward_[i];
      others_before(group);
      if (group < first_recorded_) use(group);
      done(group);
    }
    others_before(groups_);
  }

 private:
  const nn::ParameterSet& set_;
  int groups_, first_recorded_ = 0, first_unmarked_ = 0;
  std::vector<int> forward_;
};

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

  std::unique_ptr<parallel::ParameterShards> shards;
  if (reducer.layout() != nullptr) {
    shards = std::make_unique<parallel::ParameterShards>(parameters, *comm, reducer, in.config.optim.ema,
                                                         optim::moment_names(in.config.optim.name));
  }
  parallel::WeightGather* const weights = shards ? shards->weights() : nullptr;

  in.model->rehearse_begin(in, step);
  const GroupPasses passes(outline);
  const auto groups = static_cast<int64_t>(parameters.gradient_ready()->groups().size());
  const int64_t accumulation = train::split_batch(in.config.train, ranks).accumulation;
  for (int64_t micro = reducer.every_micro_batch() || weights != nullptr ? 0 : accumulation - 1; micro < accumulation;
       ++micro) {
    const auto passes_left = static_cast<double>(accumulation - 1 - micro);
    reducer.begin(/*last_micro_batch=*/passes_left == 0);
    step.note("gradients", Moment::in_backward, -passes_left);  // what the pass before has left
    for (size_t i = 0; i < passes.forward().size() && weights != nullptr; ++i) {
      weights->before_forward(passes.forward()[i]);
      step.note("weights", Moment::in_forward,
                static_cast<double>(i) / static_cast<double>(passes.forward().size()) - passes_left);
    }
    int64_t completed = 0;
    passes.backward(
        [&](int group) {
          if (weights == nullptr) return;
          weights->before_backward(group);
          step.note("weights", Moment::in_backward, in.model->backward_done(in, completed, groups) - passes_left);
        },
        [&](int group) {
          completed = group + 1;
          if (passes_left > 0 && !reducer.every_micro_batch()) return;
          reducer.ready(group);
          step.note("gradients", Moment::in_backward, in.model->backward_done(in, completed, groups) - passes_left);
        });
  }
  comm->all_reduce(values({train::summed_values(ranks, outline.metric_sums)}, at::kDouble));
  step.note("metrics", Moment::after_backward);
  reducer.finish();
  step.note("gradients", Moment::in_backward);
  if (reducer.layout() != nullptr) {
    comm->all_gather(values({2 * ranks}, at::kFloat), values({2}, at::kFloat));
    step.note("gradient norm", Moment::after_backward);
    shards->gather();
    step.note("weights", Moment::after_backward);
    comm->all_reduce(values({2}, at::kDouble));
    step.note("update ratio", Moment::after_backward);
  }
  in.model->rehearse_end(in, outline, own, step);
  return step.take();
}

ShardedBytes rehearsed_bytes(const PlanInput& in) {
  const at::NoGradGuard no_grad;
  const auto comm = parallel::make_fake_comm(0, static_cast<int>(in.ranks));
  const tasks::ModelOutline outline = built_outline(in);
  const parallel::GradientReducer reducer(*outline.parameters, *comm, parallel::reducer_options(in.config.parallel));
  const parallel::ParameterShards shards(*outline.parameters, *comm, reducer, in.config.optim.ema,
                                         optim::moment_names(in.config.optim.name));
  return {.gradients = reducer.gradient_bytes(), .weights = shards.weight_memory()};
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
  const double forward = backward / 2;  // its products are half as many
  double free = -std::numeric_limits<double>::infinity(), others = 0;
  double free_forward = free;
  for (const StepExchange& exchange : plan.exchanges) {
    const double ms = 1e3 * collective_seconds(in.links, exchange.operation, plan.layout);
    plan.exchange_ms.push_back(ms);
    plan.comm_ms += ms;
    if (exchange.moment == Moment::in_backward) {
      free = std::max(free, exchange.ready * backward) + ms;
    } else if (exchange.moment == Moment::in_forward) {
      free_forward = std::max(free_forward, exchange.ready * forward) + ms;
    } else {
      others += ms;
    }
    const LinkBytes sent = link_bytes(exchange.operation, plan.layout);
    plan.sent.node += sent.node;
    plan.sent.network += sent.network;
  }
  plan.exposed_ms = std::max(free - backward, 0.0) + std::max(free_forward - forward, 0.0) + others;
  plan.step_ms = plan.own.step_ms + plan.exposed_ms;
  const auto rate = [](int64_t samples, double ms) { return static_cast<double>(samples) / (1e-3 * ms); };
  plan.samples_per_s = rate(train.global_batch_size, plan.step_ms);
  plan.efficiency =
      plan.samples_per_s / static_cast<double>(ranks) / rate(alone.config.train.global_batch_size, one.step_ms);
  return plan;
}

}  // namespace hrm::commands
