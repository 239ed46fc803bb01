#pragma once
// Simple measures of a short reply, each in 0..1, and their weighted sum: the reward of a trainer for replies to posts.
// These rules of thumb are kept as given; only the word list of sentiment() is our own. White space at both ends of a
// text is ignored, and lengths are in Unicode characters. A word is a run of letters, marks, digits, underscores and
// inner apostrophes, compared without letter case.

#include <string>
#include <string_view>
#include <vector>

namespace hrm::objectives {

std::vector<std::string> lower_words(std::string_view text);

// By length in characters: below 20: 0.3; below 50: 0.6; up to 150: 1; up to 280: 0.8; otherwise 0.4.
double length_score(std::string_view text);
// Distinct words / words, times 0.7 if that is below 0.5; 0 without words.
double lexical_score(std::string_view text);
// By the fraction of !?., among the characters. Below 0.01: 0.7; 0.02 to 0.08: 1; 0.01 to 0.02 and up to 0.15: 0.8;
// otherwise 0.3.
double punctuation_score(std::string_view text);
// The product of these factors, at most 1:
//    0.5 for fewer than 30 characters with a common phrase as whole words ("nice", "thank you")
//    1.1 with a question mark
//    1.05 with two or more of .!?
//    0.6 if all letters are capitals
double engagement_score(std::string_view text);
// -1..1: (positive - negative words) / both, by our own list; 0 without any.
double polarity(std::string_view text);
// 1 - |difference of polarity| / 2.
double sentiment_score(std::string_view prompt, std::string_view reply);

// The sum of RewardOptions "heuristic". relevance in 0..1.
double heuristic_score(std::string_view prompt, std::string_view reply, double relevance);

}  // namespace hrm::objectives
