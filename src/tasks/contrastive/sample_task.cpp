#include "hrm/tasks/sample_task.h"

#include <ATen/ATen.h>
#include <ATen/ceil_div.h>

#include <algorithm>
#include <numbers>

#include "hrm/base/error.h"
#include "hrm/base/text.h"
#include "hrm/metrics/metric_text.h"
#include "hrm/ops/linear.h"
#include "hrm/runtime/phase_clock.h"

namespace hrm::tasks {

NamedValues evaluate_samples(const ContrastiveSource& source, int64_t batch, at::Device device, parallel::Comm& comm,
                             const std::function<at::Tensor(const at::Tensor&)>& logits,
                             const std::function<void(const EvalProgress&)>& progress) {
  const at::NoGradGuard no_grad;
  const at::Tensor sums = at::zeros({3}, at::device(device).dtype(at::kDouble));
  const int64_t rows = source.rows(), first = rows * comm.rank() / comm.ranks();
  const int64_t last = rows * (comm.rank() + 1) / comm.ranks();
  // Ranks meet in `progress`: all must call it equally often and with the same values, even those with fewer rows.
  const int64_t batches = at::ceil_div(at::ceil_div(rows, int64_t{comm.ranks()}), batch);
  for (int64_t index = 0; index < batches; ++index) {
    const PhaseRange range(Phase::eval_batch, RangeKind::eval);
    const int64_t row = first + index * batch, count = std::min(batch, last - row);
    if (count > 0) {
      const data::VectorBatch samples = data::empty_vector_batch(count, source.features(), device);
      source.load(at::arange(row, row + count, at::device(device).dtype(at::kLong)), samples);
      const at::Tensor found = logits(samples.inputs);
      const at::Tensor losses = -found.log_softmax(-1).gather(1, samples.labels.unsqueeze(1));
      sums.add_(at::stack({losses.sum(at::kDouble), found.argmax(-1).eq(samples.labels).sum().to(at::kDouble),
                           at::full({}, static_cast<double>(count), sums.options())}));
    }
    progress({std::min(rows, (index + 1) * batch * comm.ranks()), rows});
  }
  if (!comm.alone()) comm.all_reduce(sums);
  const at::Tensor host = sums.cpu();
  const double* const all = host.const_data_ptr<double>();
  NamedValues result{{"loss", all[0] / all[2]}, {"accuracy", all[1] / all[2]}, {"rows", all[2]}};
  if (source.is_text()) result.emplace_back("bits_per_token", all[0] / all[2] / std::numbers::ln2);
  return result;
}

std::string samples_eval_text(const NamedValues& result) {
  std::string text = cat("loss ", metrics::fixed(value_of(result, "loss"), 4));
  if (const auto bits = find_value(result, "bits_per_token")) text += cat(" | bits/token ", metrics::fixed(*bits, 3));
  return cat(text, " | accuracy ", metrics::percent(value_of(result, "accuracy")), " | ",
             static_cast<int64_t>(value_of(result, "rows")), " rows");
}

SampleTask::SampleTask(const config::Config& config, const Runtime& runtime, std::shared_ptr<parallel::Comm> comm)
    : config_(config),
      runtime_(runtime),
      comm_(comm ? std::move(comm) : parallel::make_single_comm()),
      data_(open_contrastive_data(config, runtime.device)),
      staged_(runtime.device) {
  rows_ = config.train.global_batch_size / comm_->ranks();
  micro_batch_size_ = config.train.micro_batch_size > 0 ? config.train.micro_batch_size : rows_;
  batch_ = data::empty_vector_batch(rows_, data_.train->features(), runtime.device);
  counter_ = at::zeros({}, at::device(runtime.device).dtype(at::kLong));
}

data::VectorStreamOptions SampleTask::stream_options() const {
  return {.seed = static_cast<uint64_t>(config_.run.seed),
          .global_batch_size = config_.train.global_batch_size,
          .rank = comm_->rank(),
          .ranks = comm_->ranks(),
          .pinned = runtime_.device.is_cuda()};
}

double SampleTask::load_batch(int64_t step, double) {
  if (!stream_) stream_ = std::make_unique<data::VectorStream>(data_.train->rows(), stream_options(), position_);
  staged_.make_room();
  data::VectorPicks picks = stream_->next();
  data_.train->load(picks.rows, batch_);
  position_ = picks.position_after;
  staged_.hold(std::move(picks));
  counter_.fill_(step);
  batch_loaded(step);
  return 0;
}

data::VectorBatch SampleTask::batch_part(int64_t micro_batch) const {
  const int64_t first = micro_batch * micro_batch_size_;
  return {batch_.inputs.narrow(0, first, micro_batch_size_), batch_.labels.narrow(0, first, micro_batch_size_)};
}

double SampleTask::micro_batch_share() const {
  return static_cast<double>(micro_batch_size_) / static_cast<double>(config_.train.global_batch_size);
}

int64_t SampleTask::evaluation_batch() const {
  return config_.eval.batch_size > 0 ? config_.eval.batch_size : micro_batch_size_;
}

void SampleTask::add_gradients(const nn::ParameterSet& parameters, const std::vector<at::Tensor>& gradients,
                               const at::Tensor& loss_scale) const {
  const double share = micro_batch_share();
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i].defined()) continue;
    ops::gradient_buffer(parameters.all()[i].master)
        .add_(loss_scale.defined() ? gradients[i] * loss_scale : gradients[i], share);
  }
}

void SampleTask::skip_batches(int64_t count) {
  require(!stream_, ExitCode::unexpected, "batches can be left out before the first step alone");
  position_ += count * config_.train.global_batch_size;
}

at::Tensor SampleTask::step_loss(const at::Tensor& sums) const {
  return sums.select(0, 0).clone();
}

NamedValues SampleTask::summarize(const std::vector<double>& sums, int64_t steps) const {
  NamedValues out;
  for (size_t i = 0; i < metric_names_.size(); ++i) {
    out.emplace_back(metric_names_[i], sums[i] / static_cast<double>(std::max<int64_t>(steps, 1)));
  }
  return out;
}

std::string SampleTask::progress_text(const NamedValues& summary) const {
  std::string text = cat("loss ", metrics::fixed(value_of(summary, "loss"), 3));
  if (const auto bits = find_value(summary, "bits_per_token")) text += cat(" | bits/token ", metrics::fixed(*bits, 3));
  text += cat(" | accuracy ", metrics::percent(value_of(summary, "accuracy")));
  if (const auto cosine = find_value(summary, "cosine")) text += cat(" | cosine ", metrics::fixed(*cosine, 5));
  return text;
}

double SampleTask::score(const NamedValues& result) const {
  return data_.train->is_text() ? -value_of(result, "loss") : value_of(result, "accuracy");
}

std::map<std::string, std::string> SampleTask::signature() const {
  return {{"task", "contrastive"},
          {"features", std::to_string(data_.train->features())},
          {"classes", std::to_string(data_.train->classes())}};
}

std::map<std::string, std::string> SampleTask::source_digests() const {
  if (train_digest_.empty()) train_digest_ = data_.train->digest();
  return {{"training data", train_digest_}};
}

std::string SampleTask::next_batch_digest(int64_t) {
  return data_.train->batch_digest(stream_options(), position_);
}

std::string SampleTask::describe_data() const {
  std::string text = cat("\ntraining     ", data_.train->origin(), ": ", data_.train->rows(), " rows of ",
                         data_.train->features(), " features, ", data_.train->classes(), " classes");
  if (data_.test) text += cat("\ntest         ", data_.test->origin(), ": ", data_.test->rows(), " rows");
  return text;
}

void SampleTask::visit_position(StateVisitor& visitor) {
  visitor.integer("sampler.position", position_);
}

}  // namespace hrm::tasks
