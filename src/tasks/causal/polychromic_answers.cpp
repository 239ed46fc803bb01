#include "hrm/tasks/polychromic_answers.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "hrm/base/error.h"
#include "hrm/base/text.h"
#include "hrm/data/batch.h"

namespace hrm::tasks {
namespace {

int64_t rounded_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// The largest of all ranks: they have one shape of the captured step, and one state to save.
int64_t largest_of_ranks(int64_t value, at::Device device, parallel::Comm& comm) {
  if (comm.alone()) return value;
  const at::Tensor largest = at::full({}, value, at::device(device).dtype(at::kLong));
  comm.all_reduce_in_step(largest, parallel::Reduction::max);
  return largest.item<int64_t>();
}

}  // namespace

int64_t answer_width(int64_t longest, int64_t positions, int64_t buckets, int64_t multiple) {
  const int64_t unit = rounded_up((positions + buckets - 1) / buckets, 8);
  return rounded_up(std::min(positions, std::max<int64_t>(unit, rounded_up(longest, unit))), multiple);
}

AnswerBatch::AnswerBatch(const Options& options, at::Device device) : options_(options), device_(device) {
  const auto longs = at::device(device).dtype(at::kLong);
  const auto floats = longs.dtype(at::kFloat);
  const int64_t rows = options.rows, positions = rounded_up(options.positions, options.multiple);
  ids_ = at::full({rows, positions}, options.pad_id, longs);
  labels_ = at::full_like(ids_, data::kIgnoreLabel);
  weights_ = at::zeros({rows, positions}, floats);
  advantages_ = at::zeros({rows}, floats);
  if (options.keeps_log_p) log_p_ = at::zeros({rows, positions}, floats);
  if (options.shares_prompts) {
    shared_ = std::make_unique<PrefixSharing>(options.micro_batches, rows / options.micro_batches, positions,
                                              options.response_tokens, device);
  }
}

void AnswerBatch::clear() {
  width_ = shared_tokens_ = 0;
  updates_ = 0;
}

void AnswerBatch::write(const std::vector<std::vector<int32_t>>& prompts, const Answers& answers,
                        const AnswerLayout& layout, bool only_finished, parallel::Comm& comm) {
  layout_ = layout;
  const auto rows = static_cast<int64_t>(answers.ids.size());
  int64_t longest = 1;
  for (int64_t row = 0; row < rows; ++row) {
    const size_t length =
        prompts[static_cast<size_t>(row / answers.samples)].size() + answers.ids[static_cast<size_t>(row)].size();
    longest = std::max(longest, static_cast<int64_t>(length) - 1);
  }
  longest = largest_of_ranks(longest, device_, comm);
  require(longest <= options_.positions, ExitCode::unexpected, "a sampled row of ", longest, " positions, room is for ",
          options_.positions);
  width_ = answer_width(longest, options_.positions, options_.buckets, options_.multiple);
  const at::Tensor ids = at::full({rows, width_}, options_.pad_id, at::kLong);
  const at::Tensor labels = at::full_like(ids, data::kIgnoreLabel);
  for (int64_t row = 0; row < rows; ++row) {
    const std::vector<int32_t>& prompt = prompts[static_cast<size_t>(row / answers.samples)];
    const std::vector<int32_t>& answer = answers.ids[static_cast<size_t>(row)];
    auto* id = ids.data_ptr<int64_t>() + row * width_;
    auto* label = labels.data_ptr<int64_t>() + row * width_;
    const auto begun = static_cast<int64_t>(prompt.size()), end = begun + static_cast<int64_t>(answer.size());
    const bool counts = !only_finished || answers.finished[static_cast<size_t>(row)];
    for (int64_t t = 0; t + 1 < end; ++t) {
      id[t] = t < begun ? prompt[static_cast<size_t>(t)] : answer[static_cast<size_t>(t - begun)];
      if (counts && t + 1 >= begun) label[t] = answer[static_cast<size_t>(t + 1 - begun)];
    }
  }
  ids_.narrow(0, 0, rows).narrow(1, 0, width_).copy_(ids);
  labels_.narrow(0, 0, rows).narrow(1, 0, width_).copy_(labels);
  share(ids, labels, comm);
}

void AnswerBatch::learn_again(const AnswerLayout& layout, parallel::Comm& comm) {
  layout_ = layout;
  ++updates_;
  pad();
  // A checkpoint brings back the rows, not what was made from them.
  if (!shared_is_of_rows_) share(written(ids_).cpu(), written(labels_).cpu(), comm);
}

// What stands behind the rows may be of earlier ones.
void AnswerBatch::pad() {
  width_ = std::min(width_, ids_.size(1));
  const int64_t width = rounded_up(width_, options_.multiple), more = width - width_;
  if (more == 0) return;
  const auto behind = [&](const at::Tensor& all) { return all.narrow(1, width_, more); };
  behind(ids_).fill_(options_.pad_id);
  behind(labels_).fill_(data::kIgnoreLabel);
  behind(log_p_).zero_();
  width_ = width;
}

// Where each token of the rows, (M B, W) on the CPU, stands.
void AnswerBatch::share(const at::Tensor& ids, const at::Tensor& labels, parallel::Comm& comm) {
  shared_is_of_rows_ = true;
  shared_tokens_ = 0;
  if (!shared_ || !layout_.learned) return;
  const int64_t tokens = shared_->read(ids, labels, options_.micro_batches, layout_.samples, layout_.responses);
  shared_tokens_ = PrefixSharing::capacity(largest_of_ranks(tokens, device_, comm), layout_.rows, width_);
  if (shared_tokens_ > 0) shared_->write(shared_tokens_);
}

at::Tensor AnswerBatch::written(const at::Tensor& all) const {
  return all.narrow(0, 0, options_.micro_batches * layout_.rows).narrow(1, 0, width_);
}

void AnswerBatch::set_weights(const at::Tensor& weights) {
  written(weights_).copy_(weights);
}

void AnswerBatch::set_advantages(const at::Tensor& advantages) {
  advantages_.narrow(0, 0, options_.micro_batches * layout_.rows).copy_(advantages);
  updates_ = 1;
}

AnswerRows AnswerBatch::rows(int64_t micro_batch) const {
  AnswerRows rows{.ids = {}, .labels = {}, .weights = {}, .first = micro_batch * layout_.rows, .count = layout_.rows};
  const auto part = [&](const at::Tensor& all) {
    return all.narrow(0, rows.first, rows.count).narrow(1, 0, width_).contiguous();
  };
  rows.ids = part(ids_);
  rows.labels = part(labels_);
  rows.weights = part(weights_);
  if (shared_tokens_ > 0) rows.shared = shared_->part(micro_batch);
  return rows;
}

at::Tensor AnswerBatch::sampled_log_p(const AnswerRows& rows, const at::Tensor& log_p) const {
  if (!log_p_.defined()) return {};
  const at::Tensor kept = log_p_.narrow(0, rows.first, rows.count).narrow(1, 0, width_);
  if (updates_ > 1) return kept;
  kept.copy_(log_p.detach());
  return {};
}

at::Tensor AnswerBatch::step_labels() const {
  return labels_.narrow(1, 0, std::max<int64_t>(width_, 1));
}

void AnswerBatch::visit_state(StateVisitor& visitor, int64_t rows, int64_t first_row, int64_t global_rows) {
  if (!log_p_.defined()) return;
  const auto tensor = [&](const char* name, const at::Tensor& all) {
    at::Tensor own = all.narrow(0, 0, rows);
    if (all.dim() == 2) own = own.narrow(1, 0, options_.positions);
    visitor.tensor(cat(kStatePrefix, name), own, StateRole::carry, rows_part(own.sizes(), first_row, global_rows));
  };
  const uint32_t written = ids_._version();
  tensor("ids", ids_);
  if (ids_._version() != written) shared_is_of_rows_ = false;  // read from a checkpoint
  tensor("labels", labels_);
  tensor("log_p", log_p_);
  tensor("advantages", advantages_);
  visitor.integer(cat(kStatePrefix, "width"), width_);
  visitor.integer(cat(kStatePrefix, "updates"), updates_);
}

}  // namespace hrm::tasks
