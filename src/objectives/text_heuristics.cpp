#include "hrm/objectives/text_heuristics.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "objectives/plain_text.h"

namespace hrm::objectives {
namespace {

constexpr size_t kFewestCharacters = 3, kMostCharacters = 500, kShortReply = 30;

// Phrases that fit any post.
const std::vector<std::vector<std::string>>& common_phrases() {
  static const std::vector<std::vector<std::string>> phrases{
      {"thanks"}, {"thank", "you"},  {"agree"},       {"agreed"},       {"this"}, {"nice"},
      {"great"},  {"true"},          {"so", "true"},  {"yes"},          {"no"},   {"lol"},
      {"ok"},     {"okay"},          {"cool"},        {"same", "here"}, {"wow"},  {"exactly"},
      {"facts"},  {"good", "point"}, {"well", "said"}};
  return phrases;
}

const std::set<std::string, std::less<>>& glad_words() {
  static const std::set<std::string, std::less<>> words{
      "admire",    "amazing",  "awesome",   "beautiful", "best",    "better",     "brilliant", "calm",     "celebrate",
      "charming",  "cheerful", "clever",    "congrats",  "delight", "delightful", "easy",      "enjoy",    "enjoyed",
      "excellent", "excited",  "fantastic", "fine",      "fun",     "funny",      "generous",  "glad",     "good",
      "grateful",  "great",    "happy",     "helpful",   "hope",    "incredible", "inspiring", "joy",      "kind",
      "like",      "love",     "loved",     "lovely",    "lucky",   "nice",       "perfect",   "pleasant", "pleased",
      "proud",     "smart",    "success",   "superb",    "sweet",   "thank",      "thanks",    "thrilled", "useful",
      "warm",      "welcome",  "win",       "wonderful", "works",   "wow"};
  return words;
}

const std::set<std::string, std::less<>>& sad_words() {
  static const std::set<std::string, std::less<>> words{
      "afraid",   "angry",   "annoying",  "annoyed", "awful",      "bad",      "boring",   "broken",   "cruel",
      "cry",      "dead",    "difficult", "dirty",   "disgusting", "dull",     "evil",     "fail",     "failed",
      "fake",     "fear",    "fraud",     "guilty",  "hard",       "hate",     "hated",    "horrible", "hurt",
      "ignorant", "jealous", "kill",      "lazy",    "liar",       "lonely",   "lose",     "loser",    "lost",
      "mad",      "mess",    "miserable", "nasty",   "pain",       "pathetic", "poor",     "rude",     "sad",
      "scared",   "shame",   "sick",      "sorry",   "stupid",     "suffer",   "terrible", "toxic",    "tragic",
      "ugly",     "unfair",  "unhappy",   "useless", "worse",      "worst",    "wrong"};
  return words;
}

bool is_apostrophe(char32_t c) {
  return c == U'\'' || c == U'\u2019';
}

std::vector<std::string> words_of(const std::u32string& text) {
  std::vector<std::string> words;
  std::u32string word;
  for (size_t i = 0; i <= text.size(); ++i) {
    const bool joins = i + 1 < text.size() && !word.empty() && is_apostrophe(text[i]) && is_word_character(text[i + 1]);
    if (i < text.size() && (is_word_character(text[i]) || joins)) {
      word += joins ? U'\'' : to_lower(text[i]);
    } else if (!word.empty()) {
      words.push_back(to_utf8(word));
      word.clear();
    }
  }
  return words;
}

double length_of(const std::u32string& text) {
  const size_t n = text.size();
  return n < 20 ? 0.3 : n < 50 ? 0.6 : n <= 150 ? 1 : n <= 280 ? 0.8 : 0.4;
}

double lexical_of(const std::vector<std::string>& words) {
  if (words.empty()) return 0;
  const std::set<std::string> different(words.begin(), words.end());
  const double share = static_cast<double>(different.size()) / static_cast<double>(words.size());
  return share < 0.5 ? share * 0.7 : share;
}

double punctuation_of(const std::u32string& text) {
  const auto marks = std::count_if(text.begin(), text.end(),
                                   [](char32_t c) { return c == U'!' || c == U'?' || c == U'.' || c == U','; });
  const double share = text.empty() ? 0 : static_cast<double>(marks) / static_cast<double>(text.size());
  if (share < 0.01) return 0.7;
  if (share < 0.02) return 0.8;
  return share <= 0.08 ? 1 : share <= 0.15 ? 0.8 : 0.3;
}

bool has_common_phrase(const std::vector<std::string>& words) {
  return std::any_of(common_phrases().begin(), common_phrases().end(), [&](const auto& phrase) {
    return std::search(words.begin(), words.end(), phrase.begin(), phrase.end()) != words.end();
  });
}

double engagement_of(const std::u32string& text, const std::vector<std::string>& words) {
  double score = 1;
  if (text.size() < kShortReply && has_common_phrase(words)) score *= 0.5;
  if (text.find(U'?') != text.npos) score *= 1.1;
  const auto ends =
      std::count_if(text.begin(), text.end(), [](char32_t c) { return c == U'.' || c == U'!' || c == U'?'; });
  if (ends >= 2) score *= 1.05;
  if (std::any_of(text.begin(), text.end(), is_capital) && std::none_of(text.begin(), text.end(), is_small)) {
    score *= 0.6;
  }
  return std::clamp(score, 0.0, 1.0);
}

double polarity_of(const std::vector<std::string>& words) {
  const auto among = [&](const auto& list) {
    return std::count_if(words.begin(), words.end(), [&](const auto& word) { return list.count(word) != 0; });
  };
  const auto glad = static_cast<double>(among(glad_words())), sad = static_cast<double>(among(sad_words()));
  return glad + sad > 0 ? (glad - sad) / (glad + sad) : 0;
}

}  // namespace

std::vector<std::string> lower_words(std::string_view text) {
  return words_of(trimmed_characters(text));
}

double length_score(std::string_view text) {
  return length_of(trimmed_characters(text));
}

double lexical_score(std::string_view text) {
  return lexical_of(lower_words(text));
}

double punctuation_score(std::string_view text) {
  return punctuation_of(trimmed_characters(text));
}

double engagement_score(std::string_view text) {
  const std::u32string characters = trimmed_characters(text);
  return engagement_of(characters, words_of(characters));
}

double polarity(std::string_view text) {
  return polarity_of(lower_words(text));
}

double sentiment_score(std::string_view prompt, std::string_view reply) {
  return 1 - std::abs(polarity(prompt) - polarity(reply)) / 2;
}

double heuristic_score(std::string_view prompt, std::string_view reply, double relevance) {
  const std::u32string text = trimmed_characters(reply);
  if (text.size() < kFewestCharacters) return 0;
  if (text.size() > kMostCharacters) return 0.3;
  const std::vector<std::string> words = words_of(text);
  return 0.30 * relevance + 0.15 * length_of(text) + 0.15 * sentiment_score(prompt, reply) + 0.10 * lexical_of(words) +
         0.10 * punctuation_of(text) + 0.20 * engagement_of(text, words);
}

}  // namespace hrm::objectives
