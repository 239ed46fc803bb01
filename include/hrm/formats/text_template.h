#pragma once
// A text with places for values: "Reply to this tweet:\n\n{tweet}\n\nReply:". A literal brace is doubled: "{{" and
// "}}".

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "hrm/base/error.h"

namespace hrm {

class TextTemplate {
 public:
  // Names of places have 1 to 64 of the characters A-Z a-z 0-9 . _ -. Throws Error(code) as "origin: reason" for a
  // single brace and for an invalid name.
  TextTemplate(std::string_view text, const std::string& origin, ExitCode code = ExitCode::usage);

  // Each name once, in order of first use.
  const std::vector<std::string>& names() const { return names_; }
  bool has(std::string_view name) const;

  // Returns the text with values in its places. Braces in a value are not interpreted.
  std::string fill(const std::function<std::string(const std::string& name)>& value) const;

 private:
  struct Piece {
    bool place = false;  // literal text, or the place's name
    std::string text;    // as it is, or the place's name
  };
  std::vector<Piece> pieces_;
  std::vector<std::string> names_;
};

}  // namespace hrm
