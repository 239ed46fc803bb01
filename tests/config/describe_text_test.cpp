// The help texts of the configuration's fields: `hrm_train config --describe` and docs/config.md.
#include <gtest/gtest.h>

#include <cctype>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "hrm/config/schema.h"

namespace hrm::config {
namespace {

// Verbs of the help texts, in the forms that occur there. A new verb is added here.
const std::set<std::string>& verbs() {
  static const std::set<std::string> words{
      "accepts",  "add",        "adds",     "applied",  "apply",    "are",      "asks",   "attend",   "balance",
      "begin",    "bound",      "calls",    "capture",  "captured", "changes",  "choose", "chooses",  "clip",
      "compare",  "compared",   "compute",  "computed", "connects", "counts",   "decays", "decide",   "discard",
      "divide",   "do",         "draw",     "drawn",    "drop",     "encoded",  "ends",   "enters",   "estimate",
      "evaluate", "evaluated",  "fits",     "follows",  "framed",   "frames",   "give",   "halt",     "has",
      "have",     "hold",       "holds",    "is",       "keep",     "keeps",    "kept",   "leads",    "leave",
      "let",      "limit",      "lists",    "load",     "log",      "looks",    "marks",  "match",    "maximise",
      "moved",    "multiplies", "multiply", "must",     "name",     "needs",    "pad",    "permute",  "process",
      "pulls",    "put",        "puts",     "read",     "reads",    "receive",  "record", "recorded", "replace",
      "restrict", "round",      "run",      "runs",     "sample",   "sampled",  "save",   "saved",    "scale",
      "scaled",   "scales",     "seeds",    "set",      "sets",     "share",    "skip",   "sort",     "split",
      "starts",   "stay",       "stop",     "stored",   "summed",   "supports", "tell",   "ties",     "trained",
      "turns",    "updates",    "use",      "used",     "uses",     "wait",     "write",  "writes"};
  return words;
}

std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> words;
  std::string word;
  for (const char c : text + " ") {
    if (std::isalpha(static_cast<unsigned char>(c)) != 0) {
      word += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    } else if (!word.empty()) {
      words.push_back(std::exchange(word, ""));
    }
  }
  return words;
}

// A full stop, a blank and a capital letter or a name begin another sentence; "e.g. " does not.
int sentences_of(const std::string& text) {
  int count = 1;
  for (size_t at = text.find(". "); at != std::string::npos; at = text.find(". ", at + 1)) {
    if (at < 3 || text.compare(at - 3, 3, "e.g") != 0) ++count;
  }
  return count;
}

TEST(DescribeText, HasAVerbOrAUnit) {
  for (const Field& field : fields()) {
    bool verb = false;
    for (const std::string& word : words_of(field.help)) verb = verb || verbs().count(word) > 0;
    EXPECT_TRUE(verb || !field.unit.empty()) << field.key << ": " << field.help;
  }
}

TEST(DescribeText, IsShortAndWhole) {
  for (const Field& field : fields()) {
    const std::string& help = field.help;
    EXPECT_GE(words_of(help).size(), 3u) << field.key << ": " << help;
    EXPECT_LE(words_of(help).size(), 70u) << field.key << ": " << help;
    EXPECT_LE(sentences_of(help), 2) << field.key << ": " << help;
    ASSERT_FALSE(help.empty()) << field.key;
    EXPECT_FALSE(help.ends_with('.') || help.ends_with(',') || help.ends_with(';')) << field.key << ": " << help;
    // Literals that were joined without a blank, or with two.
    EXPECT_EQ(help.find("  "), std::string::npos) << field.key << ": " << help;
    EXPECT_NE(help.front(), ' ') << field.key << ": " << help;
    EXPECT_NE(help.back(), ' ') << field.key << ": " << help;
  }
}

TEST(DescribeText, SectionsAreExplained) {
  for (const Section& section : sections()) EXPECT_GE(words_of(section.help).size(), 2u) << section.name;
}

TEST(DescribeText, TheChecksFindFaults) {
  EXPECT_EQ(sentences_of("one thing, e.g. this. Another"), 2);
  EXPECT_EQ(sentences_of("One. Two. Three"), 3);
  EXPECT_EQ(words_of("a b-c 3"), (std::vector<std::string>{"a", "b", "c"}));
}

}  // namespace
}  // namespace hrm::config
