#include "commands/plan/ranks.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <limits>

#include "hrm/base/error.h"
#include "hrm/objectives/act.h"
#include "hrm/parallel/gradient_reducer.h"
#include "hrm/parallel/parameter_shards.h"
#include "hrm/tasks/language.h"
#include "hrm/tasks/puzzle_exchange.h"
#include "hrm/train/batch_split.h"
#include "hrm/train/trainer.h"

namespace hrm::commands {
namespace {

using Moment = StepExchange::Moment;

// Names what a fake Comm has counted.
class Minutes {
 public:
  explicit Minutes(const parallel::CountingComm& comm) : comm_(comm) {}

  // Of the operations since the last call.
  void note(const std::string& what, Moment moment, double ready = 1) {
    const auto& operations = comm_.traffic().operations;
    while (exchanges.size() < operations.size())
      exchanges.push_back({what, operations[exchanges.size()], moment, ready});
  }

  std::vector<StepExchange> exchanges;

 private:
  const parallel::CountingComm& comm_;
};

// The model without memory, and what its task adds to a step.
struct Outline {
  explicit Outline(const PlanInput& in) {
    if (in.config.task == "language") {
      language = models::make_language_model_outline(in.config, in.sizes);
      parameters = &language->parameter_set();
      parameters->build(*language, at::kFloat, language->blocks_run_once());
      mixtures = models::mixtures_of(*language);
      task_sums = static_cast<int64_t>(tasks::language_metric_names(in.config, mixtures).size());
    } else {
      puzzle = models::make_puzzle_model_outline(in.config.model, in.dims);
      parameters = &puzzle->parameter_set();
      parameters->build(*puzzle, at::kFloat, puzzle->blocks_run_once());
      task_sums = static_cast<int64_t>(objectives::act_metric_names().size());
    }
  }

  std::shared_ptr<models::PuzzleModel> puzzle;  // one of the two
  std::shared_ptr<models::LanguageModel> language;
  nn::ParameterSet* parameters = nullptr;
  tasks::Mixtures mixtures;
  int64_t task_sums = 0;
};

}  // namespace

// In the order of Trainer::device_step and of the tasks.
std::vector<StepExchange> rehearse_step(const PlanInput& in) {
  const int64_t ranks = in.ranks, own = train::split_batch(in.config.train, ranks).own;
  if (ranks == 1) return {};
  const at::NoGradGuard no_grad;
  const auto comm = parallel::make_fake_comm(0, static_cast<int>(ranks));
  Outline model(in);
  nn::ParameterSet& parameters = *model.parameters;
  parallel::GradientReducer reducer(parameters, *comm, parallel::reducer_options(in.config.parallel));
  const auto values = [](at::IntArrayRef sizes, at::ScalarType dtype) {
    return at::empty(sizes, at::device(at::kMeta).dtype(dtype));
  };
  Minutes minutes(*comm);

  if (model.puzzle && !in.config.data.reference_semantics) {
    tasks::gather_taken(*comm, values({1}, at::kLong));
    minutes.note("rows taken", Moment::before_forward);
  }
  if (model.language) {
    comm->all_reduce(values({1}, at::kFloat));
    minutes.note("tokens", Moment::before_forward);
  }
  const auto groups = static_cast<int64_t>(parameters.gradient_ready()->groups().size());
  const int64_t accumulation = train::split_batch(in.config.train, ranks).accumulation;
  for (int64_t micro = reducer.every_micro_batch() ? 0 : accumulation - 1; micro < accumulation; ++micro) {
    const auto passes_left = static_cast<double>(accumulation - 1 - micro);
    reducer.begin(/*last_micro_batch=*/passes_left == 0);
    minutes.note("gradients", Moment::in_backward, -passes_left);  // what the pass before has left
    for (int64_t group = 0; group < groups; ++group) {
      reducer.ready(static_cast<int>(group));
      minutes.note("gradients", Moment::in_backward, backward_done(in, group + 1, groups) - passes_left);
    }
  }
  comm->all_reduce(values({train::summed_values(ranks, model.task_sums)}, at::kDouble));
  minutes.note("metrics", Moment::after_backward);
  reducer.finish();
  minutes.note("gradients", Moment::in_backward);
  if (reducer.layout() != nullptr) {
    comm->all_gather(values({2 * ranks}, at::kFloat), values({2}, at::kFloat));
    minutes.note("gradient norm", Moment::after_backward);
    parallel::ParameterShards(parameters, *comm, reducer, in.config.optim.ema,
                              optim::moment_names(in.config.optim.name))
        .gather();
    minutes.note("weights", Moment::after_backward);
    comm->all_reduce(values({2}, at::kDouble));
    minutes.note("update ratio", Moment::after_backward);
  }
  if (!model.mixtures.empty()) {
    const auto mixtures = static_cast<int64_t>(model.mixtures.size()), experts = in.config.moe.experts;
    comm->all_reduce(values({mixtures, experts + 1}, at::kDouble));
    minutes.note("expert loads", Moment::after_backward);
  }
  if (model.puzzle && in.config.precision.recursions == "fp8") {
    model.puzzle->enable_fp8(in.config.precision.fp8_amax_history, static_cast<double>(in.config.precision.fp8_margin));
    tasks::reduce_maxima(*comm, model.puzzle->fp8()->slots().select(1, 2));
    minutes.note("fp8 maxima", Moment::after_backward);
  }
  if (model.puzzle && in.dims.puzzle_emb_ndim > 0) {
    tasks::gather_embedding_rows(*comm, {values({own}, at::kInt), values({own, in.dims.puzzle_emb_ndim}, at::kFloat)});
    minutes.note("puzzle embedding", Moment::after_backward);
  }
  return std::move(minutes.exchanges);
}

int64_t rehearsed_gradient_bytes(const PlanInput& in) {
  const at::NoGradGuard no_grad;
  const auto comm = parallel::make_fake_comm(0, static_cast<int>(in.ranks));
  Outline model(in);
  return parallel::GradientReducer(*model.parameters, *comm, parallel::reducer_options(in.config.parallel))
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
