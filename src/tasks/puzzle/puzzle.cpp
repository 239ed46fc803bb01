#include "hrm/tasks/puzzle.h"

#include <ATen/ops/cumsum.h>

#include <cmath>
#include <limits>

#include "hrm/base/error.h"
#include "hrm/base/log.h"
#include "hrm/base/philox.h"
#include "hrm/metrics/metric_text.h"
#include "hrm/ops/attention.h"
#include "hrm/optim/sparse_sign_sgd.h"
#include "hrm/runtime/phase_clock.h"
#include "hrm/tasks/puzzle_exchange.h"
#include "hrm/tasks/reduce_maxima.h"
#include "tasks/puzzle/depth_stages.h"

namespace hrm::tasks {
namespace {

data::PuzzleBatch rows_of(const data::PuzzleBatch& batch, int64_t first, int64_t count) {
  return {batch.inputs.narrow(0, first, count), batch.labels.narrow(0, first, count),
          batch.puzzle_identifiers.narrow(0, first, count), count};
}

std::shared_ptr<const data::PuzzleDataset> open_test(const config::Config& config) {
  if (config.data.test.empty()) return nullptr;
  return data::open_dataset(config.data.test, "test", config.data);
}

void check_same_puzzles(const data::PuzzleDataset& train, const data::PuzzleDataset& test,
                        const config::DataConfig& config) {
  const auto complain = [&](const char* what, int64_t a, int64_t b) {
    require(a == b, ExitCode::data, "data.train '", config.train, "' has ", what, " ", a, ", data.test '", config.test,
            "' has ", b, "; both must hold the same kind of puzzle");
  };
  complain("sequence length", train.meta().seq_len, test.meta().seq_len);
  complain("vocabulary size", train.meta().vocab_size, test.meta().vocab_size);
  const bool both = train.vocabulary() && test.vocabulary();
  require(!both || train.vocabulary()->tokens == test.vocabulary()->tokens, ExitCode::data, "data.train '",
          config.train, "' and data.test '", config.test, "' have different symbols for the same tokens; build both ",
          "splits in one call of hrm_train data");
  require(test.meta().num_puzzle_identifiers <= train.meta().num_puzzle_identifiers, ExitCode::data, "data.test '",
          config.test, "' has ", test.meta().num_puzzle_identifiers, " puzzle identifiers, but data.train only ",
          train.meta().num_puzzle_identifiers, "; a model has no embedding for the others");
}

}  // namespace

PuzzleTask::PuzzleTask(const config::Config& config, const Runtime& runtime, std::shared_ptr<parallel::Comm> comm)
    : config_(config),
      runtime_(runtime),
      comm_(comm ? std::move(comm) : parallel::make_single_comm()),
      staged_(runtime.device) {
  require(
      !config.data.train.empty(), ExitCode::usage,
      "data.train is empty; give a dataset directory or a CSV file, e.g. data.train=data/sudoku/train_17clue_1k.csv");
  train_ = data::open_dataset(config.data.train, "train", config.data, static_cast<uint64_t>(config.run.seed));
  test_ = open_test(config);
  if (test_) check_same_puzzles(*train_, *test_, config.data);

  const auto dims = models::resolve_dims(config.model, train_->meta());
  model_ = models::make_puzzle_model(config.model, dims, static_cast<uint64_t>(config.run.seed), runtime.device,
                                     runtime.compute_dtype);
  if (runtime.precision.fp8_recursions) {
    model_->enable_fp8(config.precision.fp8_amax_history, static_cast<double>(config.precision.fp8_margin));
  }
  slots_ = config.train.global_batch_size / comm_->ranks();
  first_slot_ = comm_->rank() * slots_;
  const int64_t slots = slots_;
  micro_batch_size_ = config.train.micro_batch_size > 0 ? config.train.micro_batch_size : slots;
  state_ = objectives::make_act_state(*model_, slots);
  const auto floats = at::TensorOptions().device(runtime.device).dtype(at::kFloat);
  puzzle_rows_ = objectives::make_puzzle_rows(*model_, micro_batch_size_);
  if (puzzle_rows_.defined()) embedding_rows_grad_ = at::zeros({slots, dims.puzzle_emb_ndim}, floats);
  embedding_lr_ = at::zeros({}, floats);
  const auto ints = floats.dtype(at::kInt);
  batch_ = {at::zeros({slots, dims.seq_len}, ints), at::zeros({slots, dims.seq_len}, ints), at::zeros({slots}, ints),
            slots};
  draws_ = {at::zeros({slots}, floats), at::zeros({slots}, ints)};
  if (model_->needs_keys()) keys_ = at::zeros({slots}, floats.dtype(at::kLong));
}

void PuzzleTask::open_data() {
  const int64_t batch = config_.train.global_batch_size;
  const bool on_gpu = runtime_.device.is_cuda();
  auto options = data::train_stream_options(config_, batch, /*pinned=*/on_gpu);
  if (data::use_device_table(config_, *train_, runtime_.device)) {
    table_ = std::make_unique<data::DeviceTable>(*train_, options, runtime_.device);
    options.picks_only = true;
  }
  if (config_.data.reference_semantics) {
    options.rank = comm_->rank();
    options.ranks = comm_->ranks();
    stream_ = std::make_unique<data::TrainStream>(train_, options, position_);
  } else {
    // Which rows a rank's slots take depends on what the slots of lower ranks took: each has the rows of all.
    pool_ = std::make_unique<RowPool>(train_, options, batch, position_, runtime_.device, table_.get());
    cursor_after_ = at::zeros_like(pool_->cursor());
  }
}

double PuzzleTask::load_batch(int64_t step, double lr_factor) {
  draw_exploration(step);
  set_depth(step);
  prepare_fp8(step);
  embedding_lr_.fill_(config_.optim.puzzle_emb_lr * lr_factor);
  if (!stream_ && !pool_) open_data();
  return pool_ ? pool_->prepare() : load_rows();
}

// Activation scales begin at 1 and follow the maxima from the second step on. Weight scales are right from the first
// step, because their maxima are known.
void PuzzleTask::prepare_fp8(int64_t step) {
  nn::Fp8Recursions* fp8 = model_->fp8();
  if (!fp8) return;
  fp8->set_active(step > config_.precision.fp8_warmup_steps);
  // Only a resume with a longer warm-up leaves fp8 again: its scales would be out of date when the warm-up is over.
  if (!fp8->active() && fp8->steps() > 0) fp8->forget_scales();
  if (!fp8->active() || fp8->steps() > 0) return;
  fp8->calibrate_weights();
  log::info("recursions in fp8 from step ", step, " on, with new scales");
}

void PuzzleTask::set_depth(int64_t step) {
  if (!config_.model.depth_curriculum) return;
  const double done = static_cast<double>(step - 1) / static_cast<double>(planned_steps(config_.train, *this));
  const DepthStage stage = depth_stage_at(config_.model, done);
  model_->set_cycles(stage.H_cycles, stage.L_cycles);
}

int64_t PuzzleTask::graph_key() const {
  const int64_t fp8 = model_->fp8() && model_->fp8()->active() ? 1 : 0;
  return (model_->H_cycles() * 1024 + model_->L_cycles()) * 2 + fp8;
}

std::vector<at::Tensor> PuzzleTask::step_inputs() const {
  const data::PuzzleBatch& rows = pool_ ? pool_->rows() : batch_;
  std::vector<at::Tensor> inputs{rows.inputs,    rows.labels,      rows.puzzle_identifiers,
                                 draws_.uniform, draws_.min_steps, embedding_lr_};
  if (keys_.defined()) inputs.push_back(keys_);
  return inputs;
}

double PuzzleTask::load_rows() {
  staged_.make_room();
  data::StreamBatch rows = stream_->next();
  data::load_rows(rows, batch_, table_.get());
  position_ = rows.position_after;
  staged_.hold(std::move(rows));
  return stream_->wait_ms();
}

// The draws of a slot depend on seed, step and slot alone. They are made on the host, a few hundred numbers a step.
void PuzzleTask::draw_exploration(int64_t step) {
  const int64_t max_steps = config_.model.halt_max_steps;
  const bool pinned = runtime_.device.is_cuda();
  at::Tensor uniform = at::empty({slots_}, at::TensorOptions().dtype(at::kFloat).pinned_memory(pinned));
  at::Tensor min_steps = at::empty({slots_}, at::TensorOptions().dtype(at::kInt).pinned_memory(pinned));
  auto* u = uniform.data_ptr<float>();
  auto* m = min_steps.data_ptr<int32_t>();
  for (int64_t slot = 0; slot < slots_; ++slot) {
    CounterRng rng(static_cast<uint64_t>(config_.run.seed), Stream::explore,
                   (static_cast<uint64_t>(step) << 24) + static_cast<uint64_t>(first_slot_ + slot));
    u[slot] = rng.uniform();
    m[slot] = max_steps > 1 ? 2 + static_cast<int32_t>(rng.below(static_cast<uint32_t>(max_steps - 1))) : 1;
  }
  draws_.uniform.copy_(uniform, /*non_blocking=*/true);
  draws_.min_steps.copy_(min_steps, /*non_blocking=*/true);
  if (!keys_.defined()) return;
  at::Tensor keys = at::empty({slots_}, at::TensorOptions().dtype(at::kLong).pinned_memory(pinned));
  for (int64_t slot = 0; slot < slots_; ++slot) {
    keys.mutable_data_ptr<int64_t>()[slot] = (step % (int64_t{1} << 23) << 24) + first_slot_ + slot;
  }
  keys_.copy_(keys, /*non_blocking=*/true);
}

void PuzzleTask::forward_backward(int64_t micro_batch, const at::Tensor& loss_scale, at::Tensor& metric_sums) {
  const int64_t first = micro_batch * micro_batch_size_;
  objectives::ActState slots = state_.narrow(first, micro_batch_size_);
  const nn::Fp8Recursions* fp8 = model_->fp8();
  if (micro_batch == 0 && fp8 && fp8->active()) fp8->quantize_weights();
  if (pool_) {
    if (micro_batch == 0) share_cursor();
    objectives::act_begin_from_pool(slots, pool_->rows(), pool_->cursor(), model_->H_init(), model_->L_init());
  } else {
    objectives::act_begin(slots, rows_of(batch_, first, micro_batch_size_), model_->H_init(), model_->L_init());
  }

  const objectives::HaltDraws draws{draws_.uniform.narrow(0, first, micro_batch_size_),
                                    draws_.min_steps.narrow(0, first, micro_batch_size_)};
  objectives::TrainSegment segment;
  {
    const PhaseRange range(Phase::forward);
    const objectives::StateKeys keys{keys_.defined() ? keys_.narrow(0, first, micro_batch_size_) : at::Tensor(),
                                     static_cast<uint64_t>(config_.run.seed)};
    segment = objectives::act_train_segment(*model_, slots, puzzle_rows_, draws, config_.objective, keys);
  }
  const PhaseRange range(Phase::backward);
  // Of a pass that failed, as one may in a capture: nothing may be added to it.
  if (puzzle_rows_.defined()) puzzle_rows_.mutable_grad() = at::Tensor();
  const at::Tensor& loss = segment.loss.loss;
  const at::Tensor share = at::full({}, 1.0 / static_cast<double>(config_.train.global_batch_size), loss.options());
  loss.backward(loss_scale.defined() ? share * loss_scale.to(loss.scalar_type()) : share);
  metric_sums.add_(segment.loss.metrics);
  if (puzzle_rows_.defined()) {
    embedding_rows_grad_.narrow(0, first, micro_batch_size_).copy_(puzzle_rows_.grad());
    puzzle_rows_.mutable_grad() = at::Tensor();  // a temporary of the step
  }
}

// Slots take rows in their order in the global batch: this rank's begin behind those of the lower ranks. Device work.
void PuzzleTask::share_cursor() {
  if (comm_->alone()) return;
  const at::NoGradGuard no_grad;
  const at::Tensor taken = state_.halted.sum().view({1});
  const at::Tensor behind = at::cumsum(gather_taken(*comm_, taken), 0);
  cursor_after_.copy_(pool_->cursor() + behind.select(0, comm_->ranks() - 1));
  if (comm_->rank() > 0) pool_->cursor().add_(behind.select(0, comm_->rank() - 1));
}

void PuzzleTask::finish_step() {
  if (pool_) pool_->finish();
  if (model_->fp8() && model_->fp8()->active()) model_->fp8()->count_step();
}

void PuzzleTask::update_extra(const at::Tensor& skip) {
  if (pool_ && !comm_->alone()) pool_->cursor().copy_(cursor_after_);
  if (const nn::Fp8Recursions* fp8 = model_->fp8(); fp8 && fp8->active()) {
    // Scales follow the largest magnitude of the global batch.
    if (!comm_->alone()) reduce_maxima(*comm_, fp8->slots().select(1, 2));
    fp8->update_scales();
  }
  if (!embedding_rows_grad_.defined()) return;
  // The rows of all micro-batches and ranks at once: the sign is taken of the sum over the global batch.
  EmbeddingRows rows{state_.puzzle_identifiers, embedding_rows_grad_};
  if (!comm_->alone()) rows = gather_embedding_rows(*comm_, rows);
  optim::sparse_sign_sgd_(model_->puzzle_embedding(), rows.identifiers, rows.gradients, embedding_lr_,
                          config_.optim.puzzle_emb_weight_decay, skip);
}

const std::vector<std::string>& PuzzleTask::metric_names() const {
  return objectives::act_metric_names();
}

namespace {

// How much a sum of this name weighs in the loss.
double loss_weight(const std::string& name) {
  if (!name.ends_with("loss")) return 0;
  return name == "lm_loss" ? 1 : 0.5;
}

}  // namespace

at::Tensor PuzzleTask::step_loss(const at::Tensor& sums) const {
  at::Tensor loss = at::zeros({}, sums.options());
  const auto& names = metric_names();
  for (size_t i = 0; i < names.size(); ++i) {
    const double weight = loss_weight(names[i]) / static_cast<double>(config_.train.global_batch_size);
    if (weight > 0) loss.add_(sums.select(0, static_cast<int64_t>(i)), weight);
  }
  return loss;
}

void PuzzleTask::skip_batches(int64_t count) {
  require(!stream_ && !pool_, ExitCode::unexpected, "batches can be left out before the first step alone");
  const int64_t batch = config_.train.global_batch_size;
  position_ =
      data::position_after(train_, data::train_stream_options(config_, batch, /*pinned=*/false), position_, count);
}

// As the official trainer reports: losses per sample of the batch, all else per sample that halted.
NamedValues PuzzleTask::summarize(const std::vector<double>& sums, int64_t steps) const {
  const auto& names = metric_names();
  NamedValues out;
  double count = 0, loss = 0;
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i] == "count") count = sums[i];
  }
  const double samples = static_cast<double>(steps) * static_cast<double>(config_.train.global_batch_size);
  for (size_t i = 0; i < names.size(); ++i) {
    const std::string& name = names[i];
    if (name == "count") {
      out.emplace_back("halted_per_step", count / static_cast<double>(std::max<int64_t>(steps, 1)));
    } else if (name.ends_with("loss")) {
      const double value = sums[i] / samples;
      out.emplace_back(name, value);
      loss += loss_weight(name) * value;
    } else {
      // No sample halted in these steps: there is nothing to average.
      out.emplace_back(name, count > 0 ? sums[i] / count : std::numeric_limits<double>::quiet_NaN());
    }
  }
  out.insert(out.begin(), {"loss", loss});
  return out;
}

std::string PuzzleTask::progress_text(const NamedValues& summary) const {
  return cat("loss ", metrics::fixed(value_of(summary, "loss"), 3), " | exact ",
             metrics::percent(value_of(summary, "exact_accuracy")), " | cells ",
             metrics::percent(value_of(summary, "accuracy")), " | halt ",
             metrics::fixed(value_of(summary, "steps"), 1));
}

double PuzzleTask::samples_per_epoch() const {
  return static_cast<double>(train_->num_groups()) * train_->mean_puzzle_examples();
}

double PuzzleTask::flops_per_step() const {
  return model_->flops_per_sample_step() * static_cast<double>(config_.train.global_batch_size);
}

std::vector<std::pair<std::string, int64_t>> PuzzleTask::evaluation_sizes() const {
  std::vector<std::pair<std::string, int64_t>> sizes;
  if (config_.eval.rollouts > 1) sizes.emplace_back("rollout", config_.eval.rollouts);
  sizes.emplace_back("segment", config_.eval.segments > 0 ? config_.eval.segments : config_.model.halt_max_steps);
  return sizes;
}

double PuzzleTask::flops_per_evaluated_sample() const {
  if (config_.eval.early_halt) return 0;  // how many segments there are is known afterwards
  double flops = model_->flops_per_sample_segment();
  for (const auto& [name, size] : evaluation_sizes()) flops *= static_cast<double>(size);
  return flops;
}

void PuzzleTask::prepare_untrained_evaluation() {
  if (model_->fp8() == nullptr) return;
  model_->fp8()->calibrate_weights();
  model_->fp8()->count_step();
}

NamedValues PuzzleTask::evaluate(const std::function<void(const EvalProgress&)>& progress) {
  model_->set_cycles(config_.model.H_cycles, config_.model.L_cycles);
  // In the arithmetic of the last training step, also when no step was made since a resume.
  if (nn::Fp8Recursions* fp8 = model_->fp8()) fp8->set_active(fp8->steps() > 0);
  if (!evaluation_) {
    PuzzleEvalOptions options = puzzle_eval_options(config_, *model_, runtime_, micro_batch_size_);
    if (test_->vocabulary()) options.rules = {};  // sizes say nothing about these tokens
    evaluation_ =
        std::make_unique<PuzzleEvaluation>(*model_, test_, config_.objective, options, runtime_.device, comm_);
  }
  return evaluation_->run(progress);
}

std::string PuzzleTask::eval_text(const NamedValues& result) const {
  return puzzle_eval_text(result);
}

double PuzzleTask::score(const NamedValues& result) const {
  return value_of(result, "exact_accuracy");
}

std::string puzzle_eval_text(const NamedValues& result) {
  const auto percent = [&](const char* name) { return metrics::percent(value_of(result, name)); };
  // Rollouts have no loss.
  const auto loss = find_value(result, "lm_loss");
  return cat("exact ", percent("exact_accuracy"), " | cells ", percent("accuracy"), " | Q right ",
             percent("q_halt_accuracy"),
             loss ? cat(" | loss ", metrics::fixed(*loss, 3))
                  : cat(" | exact without noise ", percent("exact_first"), " | some rollout ", percent("exact_any")),
             " | ", metrics::fixed(value_of(result, "steps"), 1), " segments | ",
             static_cast<int64_t>(value_of(result, "count")), " puzzles");
}

// Who computes the attention of this model, for the start of the log.
std::string PuzzleTask::attention_text() const {
  const config::ModelConfig& c = config_.model;
  if (c.mlp_t) return "none, an MLP over the positions";
  const int64_t length = model_->dims().puzzle_emb_len + model_->dims().seq_len;
  const at::Tensor qkv =
      at::empty({2, length, 3 * c.hidden_size}, at::device(runtime_.device).dtype(runtime_.compute_dtype));
  if (ops::attention_fits(qkv, c.num_heads)) return "our kernel for short sequences";
  const std::string backend = sdpa_backend(runtime_.device, runtime_.compute_dtype, micro_batch_size_, c.num_heads,
                                           length, c.hidden_size / c.num_heads);
  const config::SdpaBackend wanted = config_.runtime.sdpa;
  const bool other = wanted != config::SdpaBackend::automatic && name_of(wanted) != backend &&
                     !(wanted == config::SdpaBackend::cudnn && backend == "cuDNN");
  const bool ours = ops::attention_fits_without_gradient(qkv, c.num_heads);
  return cat(ours ? "our kernel for short sequences where no gradient is needed, else " : "",
             "LibTorch's scaled dot-product attention, backend ", backend,
             other ? cat(" (runtime.sdpa = ", wanted, " does not do this shape and precision)") : std::string());
}

std::string PuzzleTask::describe() const {
  const auto& dims = model_->dims();
  std::string text = cat("model        ", config_.model.arch, ", ", model_->parameter_set().count(),
                         " parameters, hidden ", config_.model.hidden_size, ", ", dims.puzzle_emb_len + dims.seq_len,
                         " tokens, vocabulary ", dims.vocab_size, "\ndata         ", train_->num_groups(),
                         " training groups (", config_.data.train, "), augmentation ", config_.data.augmentation);
  if (test_) text += cat("; ", test_->num_examples(), " test puzzles (", config_.data.test, ")");
  if (!test_) text += "; no evaluation, for data.test is empty";
  text += "\nattention    " + attention_text();
  return text;
}

std::map<std::string, std::string> PuzzleTask::signature() const {
  const data::PuzzleMeta& meta = train_->meta();
  std::map<std::string, std::string> signature{{"task", "puzzle"},
                                               {"seq_len", std::to_string(meta.seq_len)},
                                               {"vocab_size", std::to_string(meta.vocab_size)},
                                               {"num_puzzle_identifiers", std::to_string(meta.num_puzzle_identifiers)}};
  if (const auto& vocabulary = train_->vocabulary()) signature[kVocabularyInfo] = data::vocabulary_text(*vocabulary);
  return signature;
}

std::map<std::string, std::string> PuzzleTask::source_digests() const {
  if (train_digest_.empty()) train_digest_ = train_->digest();
  return {{"training data", train_digest_}};
}

std::string PuzzleTask::next_batch_digest(int64_t) {
  find_position();
  const int64_t batch = config_.train.global_batch_size;
  return data::batch_digest(train_, data::train_stream_options(config_, batch, /*pinned=*/false), position_);
}

// The rows that slots have taken are counted on the device; a checkpoint is the moment to ask.
void PuzzleTask::find_position() {
  if (pool_) position_ = pool_->cursor().item<int64_t>();
}

void PuzzleTask::visit_state(StateVisitor& visitor) {
  visit_model(*model_, visitor);
  const auto slots = [&](const char* name, at::Tensor& tensor) {
    visitor.tensor(name, tensor, StateRole::carry,
                   rows_part(tensor.sizes(), first_slot_, config_.train.global_batch_size));
  };
  slots("carry.z_H", state_.carry.z_H);
  slots("carry.z_L", state_.carry.z_L);
  slots("carry.steps", state_.steps);
  slots("carry.halted", state_.halted);
  slots("carry.inputs", state_.inputs);
  slots("carry.labels", state_.labels);
  slots("carry.puzzle_identifiers", state_.puzzle_identifiers);
  find_position();
  visitor.integer("sampler.position", position_);
  if (model_->fp8()) model_->fp8()->visit_state(visitor);
}

}  // namespace hrm::tasks
