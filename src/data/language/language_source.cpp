#include "hrm/data/language_source.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "hrm/base/error.h"
#include "hrm/data/puzzle_meta.h"
#include "hrm/data/sampler.h"

namespace hrm::data {
namespace {

constexpr int64_t kBlock = int64_t{1} << 16;
// CounterPermutation is keyed by a number; for puzzles this is the epoch. Here the keys are the epochs of each source,
// with sources 2^40 apart, and blocks of a mixture from 2^63 on.
constexpr int kSourceShift = 40;
constexpr uint64_t kBlockKeys = uint64_t{1} << 63;

// Places of a block in proportion to the weights, as whole numbers; the largest remainders get the rest.
std::vector<int64_t> quotas(const std::vector<WeightedSource>& sources) {
  double sum = 0;
  for (const WeightedSource& source : sources) {
    require(std::isfinite(source.weight) && source.weight > 0, ExitCode::usage, "the weight of ",
            source.source->origin(), " is ", source.weight, "; it must be above 0");
    sum += source.weight;
  }
  std::vector<int64_t> result;
  std::vector<double> rest;
  for (const WeightedSource& source : sources) {
    const double exact = source.weight / sum * static_cast<double>(kBlock);
    require(exact >= 1, ExitCode::usage, "the weight of ", source.source->origin(), " is a share of ",
            source.weight / sum, "; the smallest is ", 1.0 / static_cast<double>(kBlock));
    result.push_back(static_cast<int64_t>(exact));
    rest.push_back(exact - std::floor(exact));
  }
  std::vector<size_t> order(sources.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return rest[a] > rest[b]; });
  int64_t left = kBlock - std::accumulate(result.begin(), result.end(), int64_t{0});
  for (size_t i = 0; left > 0; i = (i + 1) % order.size(), --left) ++result[order[i]];
  return result;
}

}  // namespace

void blank_row(const LanguageRow& row, int64_t pad_id) {
  if (row.encoder_ids != nullptr) {
    std::fill_n(row.encoder_ids, row.shape.encoder_len, pad_id);
    std::fill_n(row.encoder_mask, row.shape.encoder_len, false);
  }
  std::fill_n(row.decoder_ids, row.shape.decoder_len, pad_id);
  std::fill_n(row.labels, row.shape.decoder_len, kIgnoreLabel);
  if (row.document_ids != nullptr) {
    std::fill_n(row.document_ids, row.shape.decoder_len, 0);
    std::iota(row.position_ids, row.position_ids + row.shape.decoder_len, 0);
  }
}

int64_t most_documents(const std::vector<WeightedSource>& sources, int64_t decoder_len) {
  int64_t most = 1;
  for (const WeightedSource& source : sources) most = std::max(most, source.source->most_documents(decoder_len));
  return most;
}

MixtureOrder::MixtureOrder(const std::vector<WeightedSource>& sources, int64_t decoder_len, uint64_t seed)
    : quota_begin_{0}, seed_(seed) {
  require(!sources.empty(), ExitCode::usage, "no training data are given");
  for (const WeightedSource& source : sources) {
    samples_.push_back(source.source->num_samples(decoder_len));
    require(samples_.back() >= 1, ExitCode::data, source.source->origin(), ": has no sample of ", decoder_len,
            " positions; it is too short");
    check_same_language(sources[0].source->meta(), sources[0].source->origin(), source.source->meta(),
                        source.source->origin());
  }
  for (const int64_t quota : quotas(sources)) quota_begin_.push_back(quota_begin_.back() + quota);
}

void MixtureOrder::fill_block(int64_t block) {
  const CounterPermutation order(seed_, kBlockKeys + static_cast<uint64_t>(block), kBlock);
  std::vector<int64_t> used(samples_.size());
  places_.resize(kBlock);
  for (int64_t i = 0; i < kBlock; ++i) {
    const int64_t place = static_cast<int64_t>(order(static_cast<uint64_t>(i)));
    const int64_t source = std::upper_bound(quota_begin_.begin(), quota_begin_.end(), place) - quota_begin_.begin() - 1;
    places_[i] = {source, used[source]++};
  }
  block_ = block;
}

LanguagePick MixtureOrder::operator()(int64_t number) {
  int64_t source = 0, visit = number;
  if (samples_.size() > 1) {
    const int64_t block = number / kBlock;
    if (block != block_) fill_block(block);
    const LanguagePick& place = places_[number % kBlock];
    source = place.source;
    visit = block * (quota_begin_[source + 1] - quota_begin_[source]) + place.sample;
  }
  const int64_t epoch = visit / samples_[source];
  const CounterPermutation order(seed_, (static_cast<uint64_t>(source) << kSourceShift) + static_cast<uint64_t>(epoch),
                                 static_cast<uint64_t>(samples_[source]));
  return {source, static_cast<int64_t>(order(static_cast<uint64_t>(visit % samples_[source])))};
}

}  // namespace hrm::data
