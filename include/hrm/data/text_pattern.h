#pragma once
// Matches texts against a regular expression (PCRE2, https://www.pcre.org/current/doc/html/pcre2pattern.html).

#include <memory>
#include <string>
#include <string_view>

#include "hrm/base/error.h"

namespace hrm::data {

// Matching is by Unicode character; a dot also matches line ends. The work on one text is bounded, so that no text can
// stop the program.
class TextPattern {
 public:
  // Throws Error(code) as "origin: reason", with the place, for an invalid pattern.
  TextPattern(std::string_view pattern, const std::string& origin, ExitCode code = ExitCode::usage);
  ~TextPattern();
  TextPattern(TextPattern&&) noexcept;

  // yes: the whole text matches; no: it does not; gave_up: undecided after ten million steps. Invalid UTF-8 bytes count
  // as U+FFFD. Thread-safe.
  enum class Answer { yes, no, gave_up };
  Answer matches(std::string_view text) const;

  const std::string& pattern() const;

 private:
  struct Code;
  std::unique_ptr<const Code> code_;
};

}  // namespace hrm::data
