#pragma once
// Splits text by a regular expression, with PCRE2's JIT compiler.

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "hrm/base/error.h"

namespace hrm::data {

// The syntax is that of Oniguruma, the library behind tokenizer.json, which differs from PCRE2 in some signs. Only
// constructs with the same meaning in both are allowed: characters, classes [...], groups, alternatives, quantifiers,
// look-around, (?i:...), \p{..} \P{..} \s \S \d \D \A \z \r \n \t and escaped punctuation. Everything else is an error.
// \p follows PCRE2's Unicode version (14 in Debian 12).
class RegexSplitter {
 public:
  struct Match {
    size_t begin, end;
  };

  // Throws Error(code) as "origin: reason".
  RegexSplitter(std::string_view pattern, const std::string& origin, ExitCode code);
  ~RegexSplitter();
  RegexSplitter(RegexSplitter&&) noexcept;

  // Per-thread matching state of one splitter.
  class Matcher {
   public:
    explicit Matcher(const RegexSplitter& splitter);
    ~Matcher();
    Matcher(Matcher&&) noexcept;

    // Appends the matches in `text`, also empty ones, except an empty match at the end of the previous one. Throws
    // Error(data) if the search takes too long.
    void find(std::string_view text, std::vector<Match>& matches);
    // Appends the ends of the parts of `text`: the matches and the text between them, without empty parts. Throws as
    // above.
    void split(std::string_view text, std::vector<size_t>& ends);

   private:
    struct State;
    std::unique_ptr<State> state_;
  };

 private:
  struct Code;
  std::shared_ptr<const Code> code_;
};

}  // namespace hrm::data
