#include "hrm/tasks/puzzle_eval.h"

#include <ATen/ops/full.h>

#include <algorithm>

#include "hrm/base/error.h"
#include "hrm/data/test_reader.h"
#include "hrm/objectives/act.h"
#include "hrm/runtime/memory.h"

namespace hrm::tasks {
namespace {

constexpr int64_t kLargestBatch = 2048, kLargestCpuBatch = 256;
// A training step keeps the activations of all its differentiated layers, an evaluation those of one. So this many
// evaluation rows need no more memory than one training row, with room to spare.
constexpr int64_t kRowsPerTrainingRow = 4;
// With early halting: in the end of a call batches run out of rows. On a CPU, where a batch takes long, a call has no
// more rows than without it: between two calls an evaluation can be left.
constexpr int64_t kBatchesPerCall = 8, kCpuBatchesPerCall = 2;

// Device memory that one row of an evaluation takes: the carry, and what one block holds at a time.
double bytes_per_row(models::PuzzleModel& model) {
  const auto L = static_cast<double>(model.dims().puzzle_emb_len + model.dims().seq_len);
  const auto D = static_cast<double>(model.config().hidden_size);
  const auto V = static_cast<double>(model.dims().vocab_size);
  const double in_block = 8 + 3 * model.config().expansion;
  return static_cast<double>(c10::elementSize(model.parameter_set().compute_dtype())) * L * (D * in_block + 4 * V);
}

// Of all ranks: they must cut the samples alike, whatever memory each has left.
int64_t smallest(parallel::Comm& comm, int64_t value) {
  const at::Tensor negative = at::full({1}, -value, at::kLong);
  comm.all_reduce(negative, parallel::Reduction::max);
  return -negative.item<int64_t>();
}

int64_t even_parts(int64_t samples, int64_t largest) {
  const int64_t parts = (samples + largest - 1) / largest;
  return (samples + parts - 1) / parts;
}

}  // namespace

PuzzleEvalOptions puzzle_eval_options(const config::Config& config, models::PuzzleModel& model, const Runtime& runtime,
                                      int64_t training_batch) {
  PuzzleEvalOptions options;
  options.batch_size = config.eval.batch_size;
  options.max_samples = config.eval.max_samples;
  options.segments = config.eval.segments > 0 ? config.eval.segments : config.model.halt_max_steps;
  options.early_halt = config.eval.early_halt;
  options.cuda_graphs = config.runtime.cuda_graphs;
  options.selector = config.eval.selector;
  if (config.eval.rollouts > 1) options.rules = puzzle_rules(model.dims(), config.data);
  options.rollouts = {.rollouts = config.eval.rollouts,
                      .segments = options.segments,
                      .noise = config.eval.noise,
                      .noisy_state = config.eval.noisy_state,
                      .residual_window = config.eval.residual_window,
                      .seed = static_cast<uint64_t>(config.run.seed),
                      .cuda_graphs = options.cuda_graphs,
                      .early_halt = options.early_halt,
                      .agreeing = config.eval.agreeing_rollouts};
  options.largest_batch = kLargestCpuBatch;
  if (runtime.device.is_cuda()) {
    const MemoryReport memory = memory_report(runtime.device);
    const auto free =
        static_cast<double>(memory.device_total - memory.device_used + memory.reserved - memory.allocated);
    const auto fitting = static_cast<int64_t>(free / 2 / bytes_per_row(model));
    options.largest_batch = std::clamp<int64_t>(fitting, 1, kLargestBatch);
    if (training_batch > 0) {
      options.largest_batch = std::min(options.largest_batch, kRowsPerTrainingRow * training_batch);
    }
  }
  return options;
}

PuzzleEvaluation::PuzzleEvaluation(models::PuzzleModel& model, std::shared_ptr<const data::PuzzleDataset> dataset,
                                   const config::ObjectiveConfig& objective, const PuzzleEvalOptions& options,
                                   at::Device device, std::shared_ptr<parallel::Comm> comm)
    : model_(model),
      objective_(objective),
      device_(device),
      comm_(comm ? std::move(comm) : parallel::make_single_comm()),
      selector_(options.selector),
      rules_(options.rules),
      on_answers_(options.on_answers) {
  if (options.blank_identifier) blank_ = dataset->meta().blank_identifier_id;
  const int64_t ranks = comm_->ranks();
  const auto make_reader = [&](int64_t batch_size) {
    data::TestReaderOptions reader_options;
    reader_options.global_batch_size = batch_size * ranks;
    reader_options.rank = comm_->rank();
    reader_options.ranks = ranks;
    reader_options.max_samples = options.max_samples;
    reader_options.pinned = device.is_cuda();
    return std::make_unique<data::TestReader>(dataset, reader_options);
  };
  const int64_t all_samples = make_reader(1)->num_samples();
  require(all_samples > 0, ExitCode::data, "the test data hold no sample");
  const int64_t samples = (all_samples + ranks - 1) / ranks;  // of this rank, at most
  // With early halting, rows of a call take the places of those that have halted: there should be some in waiting.
  const int64_t fitting = smallest(*comm_, options.largest_batch);
  const int64_t largest = options.early_halt ? std::max<int64_t>(fitting / 2, 1) : fitting;
  const int64_t batches = device.is_cuda() ? kBatchesPerCall : kCpuBatchesPerCall;
  if (options.rollouts.rollouts > 1) {
    RolloutOptions rollouts = options.rollouts;
    const int64_t K = rollouts.rollouts, most = options.batch_size > 0 ? options.batch_size : largest;
    const int64_t puzzles = even_parts(samples, std::max<int64_t>(most / K, 1));
    rollouts.rows = options.early_halt ? puzzles * K : std::min(most, puzzles * K);
    rollouts.call_puzzles = options.early_halt ? std::min(samples, batches * puzzles) : puzzles;
    reader_ = make_reader(rollouts.call_puzzles);
    rollouts_ = std::make_unique<RolloutEvaluator>(model, rollouts);
    return;
  }
  const int64_t batch_size =
      options.batch_size > 0 ? std::min(options.batch_size, samples) : even_parts(samples, largest);
  const int64_t call_rows = options.early_halt ? std::min(samples, batches * batch_size) : batch_size;
  reader_ = make_reader(call_rows);
  evaluator_ = std::make_unique<PuzzleEvaluator>(
      model, PuzzleEvaluatorOptions{batch_size, options.segments, options.early_halt, options.cuda_graphs, call_rows,
                                    options.rollouts.seed});
}

PuzzleEvaluation::~PuzzleEvaluation() = default;

// The samples' own identifiers. From now on, `test` has those that the model gets.
at::Tensor PuzzleEvaluation::take_identifiers(data::TestBatch& test) const {
  at::Tensor own = test.batch.puzzle_identifiers;
  if (blank_) test.batch.puzzle_identifiers = at::full_like(own, *blank_);
  return own;
}

void PuzzleEvaluation::hand_over(const data::TestBatch& test, const at::Tensor& identifiers, const at::Tensor& tokens,
                                 const at::Tensor& q_halt) const {
  const auto host = [](const at::Tensor& t, at::ScalarType type) { return t.to(at::kCPU, type).contiguous(); };
  on_answers_({.identifiers = host(identifiers.narrow(0, 0, test.batch.valid_rows), at::kInt),
               .inputs = host(test.batch.inputs.narrow(0, 0, test.batch.valid_rows), at::kInt),
               .tokens = host(tokens, at::kInt),
               .q_halt = host(q_halt, at::kFloat)});
}

namespace {

// (N) int64: the largest Q value among the answers that obey the rules, or of all where none does.
at::Tensor choose_by_rules(const RolloutEvaluator::Answers& answers, const at::Tensor& questions,
                           const PuzzleRules& rules) {
  const at::Tensor tokens = answers.tokens.to(at::kCPU).contiguous(),
                   asked = questions.to(at::kCPU, at::kInt).contiguous();
  const int64_t N = tokens.size(0), K = tokens.size(1), S = tokens.size(2);
  const at::Tensor valid = at::empty({N, K}, at::kBool);
  for (int64_t row = 0; row < N * K; ++row) {
    const int32_t* question = asked.const_data_ptr<int32_t>() + row / K * S;
    valid.data_ptr<bool>()[row] = rules(question, tokens.const_data_ptr<int32_t>() + row * S);
  }
  return choose_valid(answers, valid.to(answers.q_halt.device()));
}

}  // namespace

// Sums over samples, in one row: what all ranks add up.
NamedValues PuzzleEvaluation::run_rollouts(const std::function<void(const EvalProgress&)>& progress) {
  using Selector = config::RolloutSelector;
  const std::vector<std::pair<const char*, Selector>> selectors{{"exact_first", Selector::first},
                                                                {"exact_q", Selector::q},
                                                                {"exact_majority", Selector::majority},
                                                                {"exact_residual", Selector::residual},
                                                                {"exact_settled", Selector::settled}};
  std::vector<std::string> names{"count",      "accuracy",       "exact_accuracy", "q_halt_accuracy", "exact_any",
                                 "exact_mean", "answers_differ", "residual",       "settled",         "steps"};
  for (const auto& [name, selector] : selectors) names.emplace_back(name);
  if (rules_) names.emplace_back("exact_valid");
  const at::NoGradGuard no_grad;
  const nn::Fp8Evaluation fp8(model_.fp8());
  at::Tensor sums = at::zeros({static_cast<int64_t>(names.size())}, at::device(device_).dtype(at::kDouble));
  AsyncReader finished;
  int64_t done = 0;
  for (int64_t index = 0; index < reader_->num_batches(); ++index) {
    data::TestBatch test = reader_->batch(index);
    const at::Tensor identifiers = take_identifiers(test);
    const int64_t valid = test.batch.valid_rows;
    done += test.global_valid_rows;
    if (valid > 0) {
      const RolloutEvaluator::Answers answers = rollouts_->run(test.batch, test.examples);
      const at::Tensor labels = test.batch.labels.narrow(0, 0, valid).to(device_).unsqueeze(1);
      const at::Tensor labelled = labels.ne(data::kIgnoreLabel), counted = labelled.any(-1);  // (N, 1, S), (N, 1)
      const at::Tensor hits = answers.tokens.eq(labels).logical_or(labelled.logical_not());
      const at::Tensor right = hits.all(-1).logical_and(counted).to(at::kDouble);  // (N, K)
      const auto of = [&](const at::Tensor& values, const at::Tensor& chosen) {
        return values.gather(1, chosen.unsqueeze(1)).squeeze(1);
      };
      const at::Tensor chosen = choose_rollouts(answers, selector_), found = of(right, chosen);
      if (on_answers_) {
        const at::Tensor cell = chosen.view({-1, 1, 1}).expand({-1, 1, answers.tokens.size(2)});
        hand_over(test, identifiers, answers.tokens.gather(1, cell).squeeze(1), of(answers.q_halt, chosen));
      }
      const at::Tensor cells = (hits.logical_and(labelled).sum(-1) / labelled.sum(-1).clamp_min(1)).to(at::kDouble);
      const at::Tensor halts = of(answers.q_halt, chosen).ge(0).eq(found.gt(0)).logical_and(counted.squeeze(1));
      const at::Tensor differ = answers.tokens.ne(answers.tokens.narrow(1, 0, 1)).any(-1).any(-1);
      std::vector<at::Tensor> values{
          counted.sum().to(at::kDouble),
          of(cells, chosen).sum(),
          found.sum(),
          halts.sum().to(at::kDouble),
          right.amax(1).sum(),
          right.mean(1).sum(),
          differ.logical_and(counted.squeeze(1)).sum().to(at::kDouble),
          of(answers.residual, chosen).to(at::kDouble).sum(),
          of(answers.settled, chosen).to(at::kDouble).sum(),
          answers.segments.masked_fill(counted.squeeze(1).logical_not(), 0).sum().to(at::kDouble)};
      for (const auto& [name, selector] : selectors)
        values.push_back(of(right, choose_rollouts(answers, selector)).sum());
      if (rules_) {
        const at::Tensor by_rules = choose_by_rules(answers, test.batch.inputs.narrow(0, 0, valid), rules_);
        values.push_back(of(right, by_rules).sum());
      }
      sums.add_(at::stack(values));
    }
    finished.push(done, sums);
    // One batch behind, so that the device does not wait.
    while (finished.pending() > 1) progress({finished.pop(/*wait=*/true)->tag, reader_->num_samples()});
  }
  while (finished.pending() > 0) progress({finished.pop(/*wait=*/true)->tag, reader_->num_samples()});
  if (!comm_->alone()) comm_->all_reduce(sums);
  const at::Tensor host = sums.to(at::kCPU);
  const double count = host[0].item<double>();
  NamedValues out;
  for (size_t i = 0; i < names.size(); ++i) {
    const double value = host[static_cast<int64_t>(i)].item<double>();
    out.emplace_back(names[i], i == 0 ? count : value / std::max(count, 1.0));
  }
  return out;
}

NamedValues PuzzleEvaluation::run(const std::function<void(const EvalProgress&)>& progress) {
  if (rollouts_) return run_rollouts(progress);
  const auto& names = objectives::act_metric_names();
  const at::NoGradGuard no_grad;
  const nn::Fp8Evaluation fp8(model_.fp8());
  at::Tensor sums =
      at::zeros({static_cast<int64_t>(names.size())}, at::TensorOptions().device(device_).dtype(at::kDouble));
  AsyncReader finished;  // sums after each batch
  std::vector<double> values;
  const auto read = [&](int64_t may_be_pending) {
    while (static_cast<int64_t>(finished.pending()) > may_be_pending) {
      const auto entry = finished.pop(/*wait=*/true);
      values = entry->values;
      progress({entry->tag, reader_->num_samples()});
    }
  };
  int64_t done = 0;
  for (int64_t index = 0; index < reader_->num_batches(); ++index) {
    data::TestBatch test = reader_->batch(index);
    const at::Tensor identifiers = take_identifiers(test);
    const int64_t valid = test.batch.valid_rows;
    done += test.global_valid_rows;
    if (valid == 0) {  // the last batch may not have a row for every rank
      finished.push(done, sums);
      read(/*may_be_pending=*/1);
      continue;
    }
    const PuzzleEvaluator::Answers answers = evaluator_->run(test.batch, test.examples);
    if (on_answers_) hand_over(test, identifiers, answers.logits.argmax(-1), answers.q_halt);
    // Padding rows are skipped: they would enter the Q loss as solved puzzles.
    models::SegmentOutput output;
    output.logits = answers.logits;
    output.q_halt = answers.q_halt;
    output.q_continue = answers.q_continue;
    objectives::ActState state;
    state.labels = test.batch.labels.narrow(0, 0, valid).to(device_, /*non_blocking=*/true);
    state.steps = answers.steps;
    state.halted = at::ones({valid}, at::device(device_).dtype(at::kBool));
    sums.add_(objectives::act_loss(output, state, std::nullopt, objective_).metrics);
    finished.push(done, sums);
    read(/*may_be_pending=*/1);
  }
  read(0);
  if (!comm_->alone()) {
    comm_->all_reduce(sums);
    const at::Tensor host = sums.to(at::kCPU);
    values.assign(host.const_data_ptr<double>(), host.const_data_ptr<double>() + host.numel());
  }

  double count = 0;
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i] == "count") count = values[i];
  }
  NamedValues out;
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i] == "q_continue_loss") continue;  // has no target without training
    out.emplace_back(names[i], names[i] == "count" ? count : values[i] / std::max(count, 1.0));
  }
  return out;
}

}  // namespace hrm::tasks
