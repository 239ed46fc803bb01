#include "hrm/tasks/prefix_sharing.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "hrm/base/error.h"
#include "hrm/data/batch.h"

namespace hrm::tasks {
namespace {

// Of one row: positions 0 .. prompt - 1 are those of the prompt, up to `end` the model reads it. end = 0: left out.
struct Extent {
  int64_t prompt = 0, end = 0;
};

Extent extent_of(const int64_t* labels, int64_t positions) {
  Extent extent;
  for (int64_t t = 0; t < positions; ++t) {
    if (labels[t] == data::kIgnoreLabel) continue;
    if (extent.end == 0) extent.prompt = t + 1;
    extent.end = t + 1;
  }
  return extent;
}

}  // namespace

// Where the tables of a micro-batch begin in its part of the buffer.
struct PrefixSharing::Layout {
  int64_t first = 0, C = 0, P = 0;  // W S; tokens, places

  int64_t U() const { return first + C; }
  int64_t ids() const { return 0; }
  int64_t labels() const { return C; }
  int64_t label_tokens() const { return 2 * C; }                      // (C, 1) tokens
  int64_t label_places() const { return 3 * C; }                      // (C, 1) places
  int64_t token_labels() const { return 4 * C; }                      // list of labels of all tokens
  int64_t token_labels_begin() const { return 5 * C; }                // (U + 1)
  int64_t token_places_begin() const { return 5 * C + U() + 1; }      // (U + 1)
  int64_t collect() const { return 5 * C + 2 * (U() + 1); }           // (U, 1) places
  int64_t token_places() const { return collect() + U(); }            // list of places of all tokens, at most P
  int64_t place_tokens() const { return token_places() + P; }         // (P, 1) tokens
  int64_t place_collected() const { return token_places() + 2 * P; }  // (P, 1): the token that is read from here
  int64_t place_labels() const { return token_places() + 3 * P; }     // (P, 1) labels
  int64_t elements() const { return token_places() + 4 * P; }
};

// The answers to one prompt.
struct PrefixSharing::Group {
  std::vector<Extent> extents;      // of its rows
  std::vector<const int64_t*> ids;  // of its rows
  std::vector<const int64_t*> labels;
  int64_t prompt = 0;  // tokens; 0 where all rows are skipped
  const int64_t* prompt_ids = nullptr;
  bool in_response = false;  // the prompt is in the response's row
};

PrefixSharing::Group PrefixSharing::group(int64_t micro_batch, int64_t index) const {
  Group group;
  for (int64_t i = 0; i < samples_; ++i) {
    const int64_t row = micro_batch * rows_ + index * samples_ + i;
    group.ids.push_back(ids_.const_data_ptr<int64_t>() + row * positions_);
    group.labels.push_back(labels_.const_data_ptr<int64_t>() + row * positions_);
    const Extent extent = extent_of(group.labels.back(), positions_);
    group.extents.push_back(extent);
    if (extent.end == 0) continue;
    if (group.prompt == 0) group.prompt_ids = group.ids.back();
    group.prompt = extent.prompt;
    require(std::equal(group.ids.back(), group.ids.back() + extent.prompt, group.prompt_ids), ExitCode::unexpected,
            "answers to one prompt do not begin alike");
  }
  if (response_rows_ > 0 && group.prompt > 0 && group.prompt <= responses_.size(1)) {
    const int64_t* const response =
        responses_.const_data_ptr<int64_t>() + (micro_batch * response_rows_ + index) * responses_.size(1);
    group.in_response = std::equal(group.prompt_ids, group.prompt_ids + group.prompt, response);
  }
  return group;
}

// Fills the tables of a micro-batch.
class PrefixSharing::Writer {
 public:
  Writer(const Layout& layout, int32_t* to) : at_(layout), to_(to) {
    std::fill_n(to_ + at_.ids(), at_.C, 0);
    std::fill_n(to_ + at_.labels(), at_.C, static_cast<int32_t>(data::kIgnoreLabel));
  }

  int64_t new_token(int64_t id) {
    to_[at_.ids() + tokens_] = static_cast<int32_t>(id);
    return at_.first + tokens_++;
  }
  // One more place of it. Tokens of responses are read from their own rows.
  void stands_at(int64_t token, int64_t place) {
    stands_.emplace_back(token, place);
    to_[at_.place_tokens() + place] = static_cast<int32_t>(token);
    int32_t& from = to_[at_.collect() + token];
    if (from >= 0 || token < at_.first) return;
    from = static_cast<int32_t>(place);
    to_[at_.place_collected() + place] = static_cast<int32_t>(token);
  }
  // The token gives a label there.
  void gives(int64_t token, int64_t place, int64_t id) {
    const auto label = static_cast<int64_t>(gives_.size());
    gives_.emplace_back(token, label);
    to_[at_.label_tokens() + label] = static_cast<int32_t>(token);
    to_[at_.label_places() + label] = static_cast<int32_t>(place);
    to_[at_.place_labels() + place] = static_cast<int32_t>(label);
    to_[at_.labels() + label] = static_cast<int32_t>(id);
  }
  void finish() {
    list(stands_, to_ + at_.token_places_begin(), to_ + at_.token_places());
    list(gives_, to_ + at_.token_labels_begin(), to_ + at_.token_labels());
  }

 private:
  using Pairs = std::vector<std::pair<int64_t, int64_t>>;  // of a token

  // What each token has, in the order of the tokens.
  void list(const Pairs& pairs, int32_t* begin, int32_t* entries) const {
    const int64_t U = at_.U();
    std::fill_n(begin, U + 1, 0);
    for (const auto& [token, value] : pairs) ++begin[token + 1];
    std::partial_sum(begin, begin + U + 1, begin);
    std::vector<int32_t> next(begin, begin + U);
    for (const auto& [token, value] : pairs) {
      entries[next[static_cast<size_t>(token)]++] = static_cast<int32_t>(value);
    }
  }

  const Layout& at_;
  int32_t* to_;
  int64_t tokens_ = 0;
  Pairs stands_, gives_;
};

PrefixSharing::Layout PrefixSharing::layout() const {
  const int64_t first = response_rows_ > 0 ? response_rows_ * responses_.size(1) : 0;
  return {.first = first, .C = capacity_, .P = rows_ * positions_};
}

PrefixSharing::PrefixSharing(int64_t micro_batches, int64_t rows, int64_t positions, int64_t response_tokens,
                             at::Device device) {
  const Layout most{.first = response_tokens, .C = rows * positions, .P = rows * positions};
  buffer_ = at::zeros({micro_batches * most.elements()}, at::device(device).dtype(at::kInt));
}

int64_t PrefixSharing::capacity(int64_t tokens, int64_t rows, int64_t positions) {
  constexpr int64_t kParts = 8, kMultiple = 64;
  const int64_t places = rows * positions;
  const int64_t unit = (places + kParts * kMultiple - 1) / (kParts * kMultiple) * kMultiple;
  const int64_t capacity = std::max<int64_t>(1, (tokens + unit - 1) / unit) * unit;
  return capacity < places ? capacity : 0;
}

int64_t PrefixSharing::read(const at::Tensor& ids, const at::Tensor& labels, int64_t micro_batches, int64_t samples,
                            const at::Tensor& responses) {
  ids_ = ids.contiguous();
  labels_ = labels.contiguous();
  responses_ = responses.defined() ? responses.contiguous() : responses;
  micro_batches_ = micro_batches;
  rows_ = ids.size(0) / micro_batches;
  positions_ = ids.size(1);
  samples_ = samples;
  response_rows_ = responses.defined() ? responses.size(0) / micro_batches : 0;
  int64_t most = 0;
  for (int64_t micro = 0; micro < micro_batches; ++micro) {
    int64_t tokens = 0, labelled = 0;
    for (int64_t index = 0; index < rows_ / samples; ++index) {
      const Group one = group(micro, index);
      if (!one.in_response) tokens += one.prompt;
      for (const Extent& extent : one.extents) {
        tokens += extent.end - extent.prompt;
        labelled += extent.end > 0 ? extent.end - extent.prompt + 1 : 0;
      }
    }
    most = std::max({most, tokens, labelled});
  }
  return most;
}

void PrefixSharing::write(int64_t capacity) {
  capacity_ = capacity;
  const Layout at = layout();
  require(micro_batches_ * at.elements() <= buffer_.numel(), ExitCode::unexpected, capacity, " tokens of ",
          micro_batches_, " micro-batches of ", rows_, " answers in ", buffer_.numel(),
          " elements are more than there is room for");
  const at::Tensor tables = at::full({micro_batches_, at.elements()}, -1, at::kInt);
  for (int64_t micro = 0; micro < micro_batches_; ++micro) {
    Writer writer(at, tables.data_ptr<int32_t>() + micro * at.elements());
    for (int64_t index = 0; index < rows_ / samples_; ++index) {
      const Group one = group(micro, index);
      int64_t begin = one.in_response ? index * responses_.size(1) : -1;
      for (int64_t t = 0; t < one.prompt && !one.in_response; ++t) {
        const int64_t token = writer.new_token(one.prompt_ids[t]);
        if (t == 0) begin = token;
      }
      for (size_t i = 0; i < one.extents.size(); ++i) {
        const int64_t row = index * samples_ + static_cast<int64_t>(i);
        for (int64_t t = 0; t < one.extents[i].end; ++t) {
          const int64_t token = t < one.prompt ? begin + t : writer.new_token(one.ids[i][t]);
          const int64_t place = row * positions_ + t;
          writer.stands_at(token, place);
          if (one.labels[i][t] != data::kIgnoreLabel) writer.gives(token, place, one.labels[i][t]);
        }
      }
    }
    writer.finish();
  }
  buffer_.narrow(0, 0, tables.numel()).copy_(tables.flatten());
}

PrefixSharedTokens PrefixSharing::part(int64_t micro_batch) const {
  const Layout at = layout();
  const at::Tensor all = buffer_.narrow(0, micro_batch * at.elements(), at.elements());
  const auto list = [&](int64_t begin, int64_t count) { return all.narrow(0, begin, count); };
  const auto column = [&](int64_t begin, int64_t rows) { return list(begin, rows).unsqueeze(1); };
  return {.ids = list(at.ids(), at.C).unsqueeze(0),
          .tokens = {.rows = rows_,
                     .positions = positions_,
                     .whole_rows = response_rows_,
                     .whole_positions = response_rows_ > 0 ? responses_.size(1) : 0,
                     .spread = {.rows = column(at.place_tokens(), at.P),
                                .back = list(at.token_places(), at.P),
                                .back_begin = list(at.token_places_begin(), at.U() + 1)},
                     .collect = {.rows = column(at.collect(), at.U()), .back = column(at.place_collected(), at.P)}},
          .labelled = {.rows = column(at.label_tokens(), at.C),
                       .back = list(at.token_labels(), at.C),
                       .back_begin = list(at.token_labels_begin(), at.U() + 1)},
          .labels = list(at.labels(), at.C).unsqueeze(0),
          .to_rows = {.rows = column(at.place_labels(), at.P), .back = column(at.label_places(), at.C)}};
}

}  // namespace hrm::tasks
