#include "hrm/tasks/language_eval.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "hrm/base/error.h"
#include "hrm/data/batch.h"
#include "hrm/metrics/metric_text.h"
#include "hrm/objectives/language.h"
#include "hrm/runtime/async_read.h"
#include "hrm/runtime/phase_clock.h"
#include "hrm/tasks/language_rows.h"

namespace hrm::tasks {
namespace {

// What a batch adds up to.
enum Sum : int64_t { kLoss, kTokens, kRight, kBytes, kRows, kExact, kSums };

at::Tensor bytes_of_ids(const data::TextEncoder& text, at::Device device) {
  const at::Tensor bytes = at::zeros({text.meta.vocab_size}, at::kLong);
  for (int64_t id = 0; id < bytes.numel(); ++id) bytes.data_ptr<int64_t>()[id] = text.bytes(static_cast<int32_t>(id));
  return bytes.to(device);
}

void report(const double* sums, bool bytes_known, const std::string& prefix, NamedValues& out) {
  const double tokens = sums[kTokens], loss = sums[kLoss] / tokens;
  if (tokens == 0) {  // nothing to compare with: no number at all instead of one that is none
    out.emplace_back(prefix + "tokens", 0);
    out.emplace_back(prefix + "rows", 0);
    return;
  }
  out.emplace_back(prefix + "loss", loss);
  out.emplace_back(prefix + "perplexity", std::exp(loss));
  if (bytes_known && sums[kBytes] > 0) {
    out.emplace_back(prefix + "bits_per_byte", sums[kLoss] / (std::numbers::ln2 * sums[kBytes]));
  }
  out.emplace_back(prefix + "accuracy", sums[kRight] / tokens);
  out.emplace_back(prefix + "exact_accuracy", sums[kExact] / sums[kRows]);
  out.emplace_back(prefix + "tokens", tokens);
  out.emplace_back(prefix + "rows", sums[kRows]);
}

}  // namespace

LanguageEvalOptions language_eval_options(const config::Config& config, int64_t ranks) {
  const int64_t own = config.train.global_batch_size / ranks;
  const int64_t training = config.train.micro_batch_size > 0 ? config.train.micro_batch_size : own;
  return {.shape = {config.data.encoder_len, config.data.decoder_len},
          .rows = config.eval.batch_size > 0 ? config.eval.batch_size : std::max<int64_t>(1, training),
          .document_masks = config.data.document_masks,
          .chunk = config.objective.chunk,
          .every_batch = ranks > 1 && config.parallel.zero == 3};
}

LanguageEvaluation::LanguageEvaluation(models::LanguageModel& model, const LanguageEvalOptions& given,
                                       std::vector<data::ValidationSlice> slices,
                                       const std::optional<data::TextEncoder>& text, at::Device device,
                                       std::shared_ptr<parallel::Comm> comm)
    : model_(model), options_(given), device_(device), comm_(comm ? std::move(comm) : parallel::make_single_comm()) {
  const data::LanguageReaderOptions options{
      .shape = given.shape,
      .global_batch_size = given.rows * comm_->ranks(),
      .rank = comm_->rank(),
      .ranks = comm_->ranks(),
      .pinned = device.is_cuda(),
  };
  for (data::ValidationSlice& slice : slices) readers_.emplace_back(std::move(slice), options);
  if (text) bytes_ = bytes_of_ids(*text, device);
}

at::Tensor LanguageEvaluation::measure(const data::LanguageTestBatch& test, const at::Tensor& gate_warmup) const {
  data::LanguageBatch batch = test.batch;
  if (!options_.document_masks) batch.document_ids = at::Tensor();
  // They count from 0 in each row.
  if (batch.document_ids.defined()) batch.most_documents = batch.document_ids.max().item<int>() + int64_t{1};
  for (at::Tensor* tensor : {&batch.encoder_ids, &batch.encoder_mask, &batch.decoder_ids, &batch.labels,
                             &batch.document_ids, &batch.position_ids}) {
    if (tensor->defined()) *tensor = tensor->to(device_, /*non_blocking=*/true);
  }
  LanguageRows rows = language_rows(batch, model_.limits().prompted);
  rows.inputs.gate_warmup = gate_warmup;
  const at::Tensor hidden = model_.forward(rows.inputs).hidden;
  const objectives::TokenScores scores = objectives::token_scores(model_, hidden, rows.labels, options_.chunk);
  const at::Tensor labelled = rows.labels.ne(data::kIgnoreLabel), any = labelled.any(1);
  const auto sum = [](const at::Tensor& t) { return t.sum(at::kDouble); };
  at::Tensor bytes = at::zeros({}, at::device(device_).dtype(at::kDouble));
  if (bytes_.defined()) bytes = sum(bytes_.index({rows.labels.masked_select(labelled).to(at::kLong)}));
  return at::stack({sum(scores.cross_entropy), sum(labelled), sum(scores.right.logical_and(labelled)), bytes, sum(any),
                    sum(scores.right.all(1).logical_and(any))});
}

NamedValues LanguageEvaluation::run(const std::function<void(const EvalProgress&)>& progress,
                                    const at::Tensor& gate_warmup) {
  const at::NoGradGuard no_grad;
  const at::Tensor sums =
      at::zeros({static_cast<int64_t>(readers_.size()), kSums}, at::device(device_).dtype(at::kDouble));
  EvalProgress so_far;
  for (const data::LanguageReader& reader : readers_) so_far.total += reader.num_samples();
  for (size_t slice = 0; slice < readers_.size(); ++slice) {
    const data::LanguageReader& reader = readers_[slice];
    for (int64_t index = 0; index < reader.num_batches(); ++index) {
      const PhaseRange range(Phase::eval_batch, RangeKind::eval);
      const data::LanguageTestBatch batch = reader.batch(index);
      if (batch.batch.valid_rows > 0 || options_.every_batch)
        sums.select(0, static_cast<int64_t>(slice)).add_(measure(batch, gate_warmup));
      so_far.done += batch.global_valid_rows;
      progress(so_far);
    }
  }
  if (!comm_->alone()) comm_->all_reduce(sums);
  const at::Tensor on_host = at::cat({sums.sum(0, /*keepdim=*/true), sums}).cpu();
  NamedValues result;
  report(on_host[0].data_ptr<double>(), bytes_.defined(), "", result);
  for (size_t slice = 0; readers_.size() > 1 && slice < readers_.size(); ++slice) {
    report(on_host[static_cast<int64_t>(slice) + 1].data_ptr<double>(), bytes_.defined(), readers_[slice].name() + "/",
           result);
  }
  return result;
}

std::string language_eval_text(const NamedValues& result) {
  if (value_of(result, "tokens") == 0) return "no responses to compare with";
  std::string text = cat("loss ", metrics::fixed(value_of(result, "loss"), 4));
  for (const auto& [name, value] : result) {
    if (name == "bits_per_byte") text += cat(" | bits/byte ", metrics::fixed(value, 3));
  }
  return cat(text, " | tokens ", metrics::percent(value_of(result, "accuracy")), " | exact ",
             metrics::percent(value_of(result, "exact_accuracy")), " | ",
             static_cast<int64_t>(value_of(result, "rows")), " rows");
}

}  // namespace hrm::tasks
