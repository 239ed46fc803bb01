#pragma once
// Whether a text has a given form, by a regular expression (PCRE2,
// https://www.pcre.org/current/doc/html/pcre2pattern.html).

#include <memory>
#include <string>
#include <string_view>

#include "hrm/base/error.h"

namespace hrm::data {

// Characters are those of Unicode, a dot takes line ends, too. The work on one text is bounded, so that no text can
// stop the program.
class TextPattern {
 public:
  // Throws Error(code) as "origin: reason", with the place, where the pattern is none.
  TextPattern(std::string_view pattern, const std::string& origin, ExitCode code = ExitCode::usage);
  ~TextPattern();
  TextPattern(TextPattern&&) noexcept;

  // yes: the whole text has the form; no; gave_up: ten million steps did not tell. Bytes that are no UTF-8 count as
  // U+FFFD. From any number of threads.
  enum class Answer { yes, no, gave_up };
  Answer matches(std::string_view text) const;

  const std::string& pattern() const;

 private:
  struct Code;
  std::unique_ptr<const Code> code_;
};

}  // namespace hrm::data
