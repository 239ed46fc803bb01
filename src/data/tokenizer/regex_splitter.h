#pragma once
// Words by a regular expression, through PCRE2's compiler to machine code.

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "hrm/base/error.h"

namespace hrm::data {

// The expression is Oniguruma's, the library behind tokenizer.json, which reads some signs differently from PCRE2.
// Allowed is what both read alike: characters, classes [...], groups, alternatives, quantifiers, look-around, (?i:...),
// \p{..} \P{..} \s \S \d \D \A \z \r \n \t and escaped punctuation. Everything else is refused. \p follows PCRE2's
// Unicode (14 in Debian 12).
class RegexSplitter {
 public:
  struct Match {
    size_t begin, end;
  };

  // Throws Error(code) as "origin: reason".
  RegexSplitter(std::string_view pattern, const std::string& origin, ExitCode code);
  ~RegexSplitter();
  RegexSplitter(RegexSplitter&&) noexcept;

  // What a thread needs to match; of one splitter and one thread at a time.
  class Matcher {
   public:
    explicit Matcher(const RegexSplitter& splitter);
    ~Matcher();
    Matcher(Matcher&&) noexcept;

    // Appends the matches in `text`, empty ones too, but none that is empty and begins where the last one ends. Throws
    // Error(data) where the search takes too long.
    void find(std::string_view text, std::vector<Match>& matches);
    // Appends the ends of the parts of `text`: matches, and what is between them; empty parts are left out. Throws as
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
