#include "hrm/data/text_metrics.h"

#include <utf8proc.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "data/unicode.h"
#include "hrm/base/error.h"

namespace hrm::data {
namespace {

using Words = std::vector<std::string>;
using Counts = std::map<Words, int64_t>;

constexpr int64_t kOrders = 4;
constexpr double kSmoothed = 0.1;

Counts count(const Words& words, int64_t n) {
  Counts counts;
  for (int64_t i = 0; i + n <= static_cast<int64_t>(words.size()); ++i) {
    ++counts[Words(words.begin() + i, words.begin() + i + n)];
  }
  return counts;
}

int64_t sum_of(const Counts& counts) {
  int64_t sum = 0;
  for (const auto& [gram, number] : counts) sum += number;
  return sum;
}

std::vector<Words> all_words(const std::vector<std::string>& texts) {
  std::vector<Words> all;
  for (const std::string& text : texts) all.push_back(words(text));
  return all;
}

// Of a group: n-grams of each text, counted once.
class Bleu {
 public:
  Bleu(const std::vector<Words>& texts, int64_t orders) : texts_(texts), orders_(orders), counts_(texts.size()) {
    for (size_t i = 0; i < texts.size(); ++i) {
      for (int64_t n = 1; n <= orders; ++n) counts_[i].push_back(count(texts[i], n));
    }
  }

  // Of text i against those of `others`.
  double of(size_t i, const std::vector<size_t>& others, bool smoothed) const {
    if (others.empty() || texts_[i].empty()) return 0;
    double log_sum = 0;
    for (int64_t n = 1; n <= orders_; ++n) {
      const Counts& mine = counts_[i][static_cast<size_t>(n - 1)];
      int64_t matches = 0;
      for (const auto& [gram, number] : mine) {
        int64_t most = 0;
        for (const size_t other : others) {
          const Counts& theirs = counts_[other][static_cast<size_t>(n - 1)];
          const auto found = theirs.find(gram);
          if (found != theirs.end()) most = std::max(most, found->second);
        }
        matches += std::min(number, most);
      }
      double numerator = static_cast<double>(matches);
      if (matches == 0) {
        if (!smoothed || n == 1) return 0;
        numerator = kSmoothed;
      }
      const auto denominator = static_cast<double>(std::max<int64_t>(sum_of(mine), 1));
      log_sum += std::log(numerator / denominator) / static_cast<double>(orders_);
    }
    return brevity(i, others) * std::exp(log_sum);
  }

 private:
  double brevity(size_t i, const std::vector<size_t>& others) const {
    const auto length = static_cast<int64_t>(texts_[i].size());
    int64_t nearest = 0;
    bool first = true;
    for (const size_t other : others) {
      const auto theirs = static_cast<int64_t>(texts_[other].size());
      const int64_t off = std::abs(theirs - length), best = std::abs(nearest - length);
      if (first || off < best || (off == best && theirs < nearest)) nearest = theirs;
      first = false;
    }
    return length > nearest ? 1 : std::exp(1 - static_cast<double>(nearest) / static_cast<double>(length));
  }

  const std::vector<Words>& texts_;
  int64_t orders_;
  std::vector<std::vector<Counts>> counts_;
};

std::vector<size_t> all_but(size_t count, size_t left_out, size_t also = SIZE_MAX) {
  std::vector<size_t> others;
  for (size_t i = 0; i < count; ++i) {
    if (i != left_out && i != also) others.push_back(i);
  }
  return others;
}

std::vector<double> bleu(const std::vector<std::string>& texts, int64_t orders, bool smoothed) {
  const std::vector<Words> all = all_words(texts);
  const Bleu scores(all, orders);
  std::vector<double> out;
  for (size_t i = 0; i < all.size(); ++i) out.push_back(scores.of(i, all_but(all.size(), i), smoothed));
  return out;
}

Rouge rouge_of(int64_t shared, int64_t mine, int64_t theirs) {
  if (shared == 0) return {};
  Rouge r{.precision = static_cast<double>(shared) / static_cast<double>(mine),
          .recall = static_cast<double>(shared) / static_cast<double>(theirs)};
  r.f1 = 2 * r.precision * r.recall / (r.precision + r.recall);
  return r;
}

}  // namespace

Words words(std::string_view text) {
  std::string valid;
  append_utf8_lossy(text, /*complete=*/true, valid);
  const UnicodeTable& table = UnicodeTable::get();
  Words found;
  bool inside = false;
  const auto append = [&](char32_t c) {
    utf8proc_uint8_t bytes[4];
    const utf8proc_ssize_t size = utf8proc_encode_char(static_cast<utf8proc_int32_t>(c), bytes);
    found.back().append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(size));
  };
  const auto take = [&](char32_t c) {
    const uint8_t classes = table.classes(c);
    // Of \w: what is a letter, a number or a connector.
    const bool word = c == '_' || (classes & (kLetter | kNumber)) != 0;
    if ((classes & kSpace) != 0) {
      inside = false;
    } else if (word && inside) {
      append(c);
    } else {
      found.emplace_back();
      append(c);
      inside = word;
    }
  };
  for (size_t at = 0; at < valid.size();) {
    const Character character = character_at(valid.data() + at);
    at += character.bytes;
    if (character.code == 0x130) {  // the one letter whose lower case is two characters
      take('i');
      take(0x307);
    } else {
      take(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(character.code))));
    }
  }
  return found;
}

double distinct_n(const std::vector<std::string>& texts, int64_t n) {
  Counts counts;
  for (const std::string& text : texts) {
    for (const auto& [gram, number] : count(words(text), n)) counts[gram] += number;
  }
  const int64_t all = sum_of(counts);
  return all == 0 ? 0 : static_cast<double>(counts.size()) / static_cast<double>(all);
}

std::vector<double> bleu2(const std::vector<std::string>& texts) {
  return bleu(texts, 2, /*smoothed=*/false);
}

std::vector<double> bleu4_smoothed(const std::vector<std::string>& texts) {
  return bleu(texts, kOrders, /*smoothed=*/true);
}

double self_bleu(const std::vector<std::string>& texts) {
  double sum = 0;
  for (const double value : bleu4_smoothed(texts)) sum += value;
  return texts.empty() ? 0 : sum / static_cast<double>(texts.size());
}

TextDiversity bleu_diversity(const std::vector<std::string>& texts) {
  const std::vector<Words> all = all_words(texts);
  const size_t n = all.size();
  TextDiversity out{.total = 0, .rows = std::vector<double>(n, 0), .loo = std::vector<double>(n, 0)};
  if (n < 2) return out;
  const Bleu scores(all, 2);
  for (size_t i = 0; i < n; ++i) {
    out.rows[i] = 1 - scores.of(i, all_but(n, i), false);
    out.total += out.rows[i] / static_cast<double>(n);
    if (n < 3) continue;
    for (size_t j = 0; j < n; ++j) {
      if (j != i) out.loo[i] += (1 - scores.of(j, all_but(n, i, j), false)) / static_cast<double>(n - 1);
    }
  }
  return out;
}

TextDiversity distinct_diversity(const std::vector<std::string>& texts, int64_t order) {
  const size_t n = texts.size();
  TextDiversity out{.total = 0, .rows = std::vector<double>(n, 0), .loo = std::vector<double>(n, 0)};
  if (n < 2) return out;
  std::vector<Counts> counts;
  Counts together;
  std::map<Words, int64_t> holders;  // texts that have the n-gram
  for (const std::string& text : texts) {
    counts.push_back(count(words(text), order));
    for (const auto& [gram, number] : counts.back()) {
      together[gram] += number;
      ++holders[gram];
    }
  }
  const int64_t all = sum_of(together);
  out.total = all == 0 ? 0 : static_cast<double>(together.size()) / static_cast<double>(all);
  for (size_t i = 0; i < n; ++i) {
    int64_t own = 0;
    for (const auto& [gram, number] : counts[i]) own += holders.at(gram) == 1 ? 1 : 0;
    if (!counts[i].empty()) out.rows[i] = static_cast<double>(own) / static_cast<double>(counts[i].size());
    const int64_t left = all - sum_of(counts[i]);
    if (n > 2 && left > 0) {
      out.loo[i] = static_cast<double>(static_cast<int64_t>(together.size()) - own) / static_cast<double>(left);
    }
  }
  return out;
}

Rouge rouge_n(std::string_view text, std::string_view reference, int64_t n) {
  const Counts mine = count(words(text), n), theirs = count(words(reference), n);
  int64_t shared = 0;
  for (const auto& [gram, number] : mine) {
    const auto found = theirs.find(gram);
    if (found != theirs.end()) shared += std::min(number, found->second);
  }
  return rouge_of(shared, sum_of(mine), sum_of(theirs));
}

Rouge rouge_l(std::string_view text, std::string_view reference) {
  const Words mine = words(text), theirs = words(reference);
  // Lengths of the longest common subsequences of the first words.
  std::vector<int64_t> row(theirs.size() + 1, 0);
  for (const std::string& word : mine) {
    int64_t corner = 0;
    for (size_t j = 0; j < theirs.size(); ++j) {
      const int64_t above = row[j + 1];
      row[j + 1] = word == theirs[j] ? corner + 1 : std::max(above, row[j]);
      corner = above;
    }
  }
  return rouge_of(row.back(), static_cast<int64_t>(mine.size()), static_cast<int64_t>(theirs.size()));
}

double type_token_ratio(std::string_view text) {
  const Words all = words(text);
  if (all.empty()) return 0;
  return static_cast<double>(std::set<std::string>(all.begin(), all.end()).size()) / static_cast<double>(all.size());
}

}  // namespace hrm::data
