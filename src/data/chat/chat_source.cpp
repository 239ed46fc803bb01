#include "hrm/data/chat_source.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <span>

#include "hrm/base/error.h"
#include "hrm/base/hash.h"
#include "hrm/data/puzzle_meta.h"

namespace hrm::data {
namespace {

int64_t positions_of(const ChatExample& example) {
  return std::max<int64_t>(0, example.ids() - 1);
}

// Writes an example's positions from `begin` on, cut at the end of the row.
LanguageCounts write_example(const ChatExample& example, const LanguageRow& row, int64_t begin) {
  const int64_t prompt = static_cast<int64_t>(example.prompt_ids.size());
  const auto id = [&](int64_t i) {
    return int64_t{i < prompt ? example.prompt_ids[i] : example.response_ids[i - prompt]};
  };
  LanguageCounts counts;
  counts.decoder_tokens = std::min(positions_of(example), row.shape.decoder_len - begin);
  for (int64_t t = 0; t < counts.decoder_tokens; ++t) {
    row.decoder_ids[begin + t] = id(t);
    if (example.learned.empty() ? t + 1 < prompt : example.learned[t + 1] == 0) continue;
    row.labels[begin + t] = id(t + 1);
    ++counts.label_tokens;
  }
  return counts;
}

}  // namespace

ChatSource::ChatSource(std::shared_ptr<const ChatDataset> dataset, std::vector<int64_t> examples,
                       const std::string& name, int64_t packed_len)
    : dataset_(std::move(dataset)), packed_len_(packed_len), examples_(std::move(examples)) {
  meta_ = dataset_->meta();
  origin_ = cat(dataset_->origin(), " (", name, ")");
  require(packed_len >= 0, ExitCode::usage, origin_, ": packed rows of ", packed_len, " positions");
  require(!examples_.empty(), ExitCode::data, origin_, ": has no example");
  for (const int64_t example : examples_) {
    require(example >= 0 && example < dataset_->size(), ExitCode::unexpected, "example ", example, " of ",
            dataset_->size());
  }
  if (packed_len > 0) {
    pack();
  } else {
    rows_begin_.resize(examples_.size() + 1);
    std::iota(rows_begin_.begin(), rows_begin_.end(), int64_t{0});
  }
  Hasher hasher;
  hasher.update(cat("chat ", meta_.vocab_size, " ", meta_.pad_id, " ", packed_len));
  for (const int64_t i : examples_) {
    const ChatExample& example = (*dataset_)[i];
    hasher.update(cat(" ", example.prompt_ids.size(), " ", example.response_ids.size(), " "));
    hasher.update(std::as_bytes(std::span(example.prompt_ids)));
    hasher.update(std::as_bytes(std::span(example.response_ids)));
    hasher.update(std::as_bytes(std::span(example.learned)));
  }
  digest_ = hasher.hex();
}

// Best-fit packing, longest examples first: each goes into the fullest row that has room for it.
void ChatSource::pack() {
  std::vector<int64_t> order = examples_;
  const auto length = [&](int64_t example) { return std::min(positions_of((*dataset_)[example]), packed_len_); };
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return length(a) > length(b); });
  std::vector<std::vector<int64_t>> rows;
  std::multimap<int64_t, size_t> room;  // rows by free positions
  for (const int64_t example : order) {
    auto found = room.lower_bound(length(example));
    size_t row = rows.size();
    int64_t left = packed_len_;
    if (found == room.end()) {
      rows.emplace_back();
    } else {
      std::tie(left, row) = *found;
      room.erase(found);
    }
    rows[row].push_back(example);
    room.emplace(left - length(example), row);
  }
  examples_.clear();
  rows_begin_ = {0};
  for (const std::vector<int64_t>& row : rows) {
    examples_.insert(examples_.end(), row.begin(), row.end());
    rows_begin_.push_back(static_cast<int64_t>(examples_.size()));
  }
}

int64_t ChatSource::num_samples(int64_t decoder_len) const {
  require(!packed() || decoder_len == packed_len_, ExitCode::usage, origin_, ": is packed into rows of ", packed_len_,
          " positions, not ", decoder_len);
  return static_cast<int64_t>(rows_begin_.size()) - 1;
}

int64_t ChatSource::most_documents(int64_t) const {
  int64_t most = 0;
  for (size_t row = 0; packed() && row + 1 < rows_begin_.size(); ++row) {
    most = std::max(most, rows_begin_[row + 1] - rows_begin_[row]);
  }
  return most + 1;
}

std::vector<int64_t> ChatSource::examples_of(int64_t index) const {
  return {examples_.begin() + rows_begin_[index], examples_.begin() + rows_begin_[index + 1]};
}

LanguageShape ChatSource::lengths(int64_t index, const LanguageShape& most) const {
  int64_t positions = 0;
  for (int64_t i = rows_begin_[index]; i < rows_begin_[index + 1]; ++i) {
    positions += positions_of((*dataset_)[examples_[i]]);
  }
  return {0, std::min(positions, most.decoder_len)};
}

int64_t ChatSource::cut_examples(int64_t decoder_len) const {
  return std::count_if(examples_.begin(), examples_.end(),
                       [&](int64_t example) { return positions_of((*dataset_)[example]) > decoder_len; });
}

LanguageCounts ChatSource::row(int64_t index, const LanguageRow& row) const {
  require(row.shape.encoder_len == 0, ExitCode::usage, origin_,
          ": prompts stand in front of their responses, in the same row; set data.encoder_len to 0");
  blank_row(row, meta_.pad_id);
  LanguageCounts counts;
  int32_t document = 0;
  // If the batch has document ids only because of another source, the whole row is one document.
  const bool documents = packed() && row.document_ids != nullptr;
  for (int64_t i = rows_begin_[index]; i < rows_begin_[index + 1]; ++i, ++document) {
    const int64_t begin = counts.decoder_tokens;
    counts += write_example((*dataset_)[examples_[i]], row, begin);
    if (!documents) continue;
    // Fills to the end of the row; the next document, or the padding, overwrites the rest.
    std::fill(row.document_ids + begin, row.document_ids + row.shape.decoder_len, document);
    std::iota(row.position_ids + begin, row.position_ids + row.shape.decoder_len, 0);
  }
  if (documents) {
    const int64_t end = counts.decoder_tokens;
    std::fill(row.document_ids + end, row.document_ids + row.shape.decoder_len, document);
    std::iota(row.position_ids + end, row.position_ids + row.shape.decoder_len, 0);
  }
  return counts;
}

}  // namespace hrm::data
