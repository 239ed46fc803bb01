#pragma once
// Metrics of sampled texts: how varied the texts of a group are, how close a text is to a reference, how often one of
// several tries is right. No torch here. Words are those of words(), on both sides of a comparison. n-grams with n < 1
// are Error(usage).

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace hrm::metrics {

// Lower case, then every run of word characters and every other character that is not white space, as Python's regular
// expression \w+|[^\w\s] finds them. Bytes that are not UTF-8 count as U+FFFD. A sigma at the end of a word in capitals
// becomes the common small one.
std::vector<std::string> words(std::string_view text);

// Different n-grams of words / all of them, over the texts together (Li et al., arXiv 1510.03055); 0 without any.
double distinct_n(const std::vector<std::string>& texts, int64_t n);

// BLEU (Papineni et al., ACL 2002) of each text against the others of its group. Weights are 1/2 for words and pairs,
// without smoothing, so it is 0 if no pair matches. Counts are clipped; the nearest reference length counts, of two the
// shorter. 0 for a text without words, and in a group of one.
std::vector<double> bleu2(const std::vector<std::string>& texts);
// The same with n-grams up to 4 of weight 1/4, where a count of 0 becomes 0.1 from pairs on (Chen and Cherry, WMT 2014,
// method 1), and its mean over the group: self-BLEU (Zhu et al., arXiv 1802.01886), lower = more varied.
std::vector<double> bleu4_smoothed(const std::vector<std::string>& texts);
double self_bleu(const std::vector<std::string>& texts);

// A metric of a group and what it is without each of its texts, as objectives::GroupDiversity has it.
struct TextDiversity {
  double total = 0;
  std::vector<double> rows;  // how far a text is from the others
  std::vector<double> loo;   // total of the group without the text; 0 where fewer than two are left
};
// total: 1 - mean of bleu2; a row: 1 - its bleu2. A group of fewer than two texts has 0.
TextDiversity bleu_diversity(const std::vector<std::string>& texts);
// total: distinct_n; a row: share of the text's different n-grams that no other text has.
TextDiversity distinct_diversity(const std::vector<std::string>& texts, int64_t n = 2);

// Precision, recall and their harmonic mean (Lin, "ROUGE", ACL 2004) of words; all 0 where nothing is shared.
struct Rouge {
  double precision = 0, recall = 0, f1 = 0;
};
Rouge rouge_n(std::string_view text, std::string_view reference, int64_t n);  // of shared n-grams
Rouge rouge_l(std::string_view text, std::string_view reference);             // of the longest common subsequence

// Different words / all words of one text; 0 without words.
double type_token_ratio(std::string_view text);

}  // namespace hrm::metrics
