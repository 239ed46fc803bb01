#include "hrm/metrics/text_metrics.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>
#include <unordered_map>

#include "data/tokenizer/unicode.h"
#include "hrm/base/error.h"

namespace hrm::metrics {
namespace {

using data::Character;
using data::kLetter;
using data::kNumber;
using data::kSpace;
using data::UnicodeTable;

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

// N-grams of a group's texts as numbers, and BLEU of each text against the others. For each n-gram only the texts with
// the highest counts matter, so all n^2 scores of a group without one text take O(words + n^2).
class Bleu {
 public:
  // `clips`: of a text with fewer words than orders, those that it has.
  Bleu(const std::vector<Words>& texts, int64_t orders, bool clips = false)
      : orders_(static_cast<size_t>(orders)), clips_(clips) {
    std::unordered_map<std::string, uint32_t> known;
    std::vector<std::vector<uint32_t>> ids(texts.size());
    for (size_t i = 0; i < texts.size(); ++i) {
      lengths_.push_back(static_cast<int64_t>(texts[i].size()));
      for (const std::string& word : texts[i]) {
        ids[i].push_back(known.emplace(word, static_cast<uint32_t>(known.size())).first->second);
      }
    }
    std::vector<std::vector<uint32_t>> grams = ids;
    for (size_t n = 1; n <= orders_; ++n) {
      // All but its last word are an n-gram that has a number already.
      if (n > 1) extend(grams, ids, n - 1);
      add_order(grams);
    }
  }

  // [j]: of text i in the group without text j; [i]: in the whole group.
  std::vector<double> of(size_t i, bool smoothed) const {
    const size_t n = lengths_.size();
    std::vector<double> log_sums(n, 0), out(n, 0);
    if (lengths_[i] == 0) return out;
    std::vector<bool> none(n, false);
    const size_t orders = clips_ ? std::min(orders_, static_cast<size_t>(lengths_[i])) : orders_;
    for (size_t order = 0; order < orders; ++order) {
      int64_t matches = 0;
      std::vector<int64_t> lost(n, 0);  // without text j
      for (const auto& [gram, number] : counts_[order][i]) {
        const Most& most = most_[order][gram];
        const size_t first = most[0].text == i ? 1 : 0, second = first == 1 || most[1].text == i ? 2 : 1;
        const int64_t shared = std::min(number, most[first].number);
        matches += shared;
        if (shared > 0) lost[most[first].text] += shared - std::min(number, most[second].number);
      }
      const auto denominator = static_cast<double>(std::max<int64_t>(lengths_[i] - static_cast<int64_t>(order), 1));
      for (size_t j = 0; j < n; ++j) {
        const int64_t left = matches - lost[j];
        if (left == 0 && (!smoothed || order == 0)) none[j] = true;
        const double numerator = left == 0 ? kSmoothed : static_cast<double>(left);
        log_sums[j] += std::log(numerator / denominator) / static_cast<double>(orders);
      }
    }
    const std::array<size_t, 2> nearest = nearest_lengths(i);
    for (size_t j = 0; j < n; ++j) {
      if (!none[j]) out[j] = brevity(i, nearest[0] == j ? nearest[1] : nearest[0]) * std::exp(log_sums[j]);
    }
    return out;
  }

 private:
  struct Count {
    int64_t number = 0;
    size_t text = SIZE_MAX;
  };
  using Most = std::array<Count, 3>;  // the highest counts of an n-gram, so that one is left without any two texts

  static void extend(std::vector<std::vector<uint32_t>>& grams, const std::vector<std::vector<uint32_t>>& ids,
                     size_t last) {
    std::unordered_map<uint64_t, uint32_t> known;
    for (size_t i = 0; i < grams.size(); ++i) {
      const size_t count = ids[i].size() > last ? ids[i].size() - last : 0;
      for (size_t at = 0; at < count; ++at) {
        const uint64_t pair = uint64_t{grams[i][at]} << 32 | ids[i][at + last];
        grams[i][at] = known.emplace(pair, static_cast<uint32_t>(known.size())).first->second;
      }
      grams[i].resize(count);
    }
  }

  void add_order(const std::vector<std::vector<uint32_t>>& grams) {
    auto& counts = counts_.emplace_back(grams.size());
    auto& most = most_.emplace_back();
    for (size_t i = 0; i < grams.size(); ++i) {
      std::vector<uint32_t> sorted = grams[i];
      std::sort(sorted.begin(), sorted.end());
      for (size_t at = 0; at < sorted.size();) {
        const size_t begin = at;
        while (at < sorted.size() && sorted[at] == sorted[begin]) ++at;
        counts[i].emplace_back(sorted[begin], static_cast<int64_t>(at - begin));
      }
      if (!sorted.empty()) most.resize(std::max<size_t>(most.size(), sorted.back() + size_t{1}));
      for (const auto& [gram, number] : counts[i]) {
        Count next{number, i};
        for (size_t place = 0; place < most[gram].size(); ++place) {
          if (next.number > most[gram][place].number) std::swap(next, most[gram][place]);
        }
      }
    }
  }

  // The other texts that are nearest in length, of two the shorter; SIZE_MAX where there is none.
  std::array<size_t, 2> nearest_lengths(size_t i) const {
    std::array<size_t, 2> nearest{SIZE_MAX, SIZE_MAX};
    const auto nearer = [&](size_t a, size_t b) {
      if (b == SIZE_MAX) return true;
      const int64_t off_a = std::abs(lengths_[a] - lengths_[i]), off_b = std::abs(lengths_[b] - lengths_[i]);
      return off_a < off_b || (off_a == off_b && lengths_[a] < lengths_[b]);
    };
    for (size_t j = 0; j < lengths_.size(); ++j) {
      if (j == i) continue;
      if (nearer(j, nearest[0])) {
        nearest = {j, nearest[0]};
      } else if (nearer(j, nearest[1])) {
        nearest[1] = j;
      }
    }
    return nearest;
  }

  double brevity(size_t i, size_t reference) const {
    if (reference == SIZE_MAX) return 0;
    const int64_t length = lengths_[i], theirs = lengths_[reference];
    return length > theirs ? 1 : std::exp(1 - static_cast<double>(theirs) / static_cast<double>(length));
  }

  size_t orders_;
  bool clips_;
  std::vector<int64_t> lengths_;  // of the texts, in words
  // [n - 1][text]: its n-grams and how often it has them; [n - 1][n-gram].
  std::vector<std::vector<std::vector<std::pair<uint32_t, int64_t>>>> counts_;
  std::vector<std::vector<Most>> most_;
};

std::vector<double> bleu(const std::vector<std::string>& texts, int64_t orders, bool smoothed) {
  const Bleu scores(all_words(texts), orders);
  std::vector<double> out;
  for (size_t i = 0; i < texts.size(); ++i) out.push_back(scores.of(i, smoothed)[i]);
  return out;
}

void require_order(int64_t n) {
  require(n >= 1, ExitCode::usage, "n-grams of ", n, " words: it needs at least one");
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
  data::append_utf8_lossy(text, /*complete=*/true, valid);
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
    // As Python's: \w is letters, numbers and the underscore; \s also has the four separators of ASCII.
    const bool word = c == '_' || (classes & (kLetter | kNumber)) != 0;
    if ((classes & kSpace) != 0 || (c >= 0x1C && c <= 0x1F)) {
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
    const Character character = data::character_at(valid.data() + at);
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
  require_order(n);
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
  const size_t n = texts.size();
  TextDiversity out{.total = 0, .rows = std::vector<double>(n, 0), .loo = std::vector<double>(n, 0)};
  if (n < 2) return out;
  // What has no words is one of its own, so that texts that say nothing are alike.
  std::vector<Words> all = all_words(texts);
  for (Words& one : all) {
    if (one.empty()) one.emplace_back();
  }
  const Bleu scores(all, 2, /*clips=*/true);
  for (size_t j = 0; j < n; ++j) {
    const std::vector<double> found = scores.of(j, /*smoothed=*/false);
    out.rows[j] = 1 - found[j];
    out.total += out.rows[j] / static_cast<double>(n);
    for (size_t i = 0; i < n && n > 2; ++i) {
      if (i != j) out.loo[i] += (1 - found[i]) / static_cast<double>(n - 1);
    }
  }
  return out;
}

TextDiversity distinct_diversity(const std::vector<std::string>& texts, int64_t order) {
  require_order(order);
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
  require_order(n);
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

}  // namespace hrm::metrics
