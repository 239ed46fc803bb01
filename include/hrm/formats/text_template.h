#pragma once
// A text with places for values: "Reply to this tweet:\n\n{tweet}\n\nReply:". A brace that begins or ends no place
// stands twice: "{{" and "}}".

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "hrm/base/error.h"

namespace hrm {

class TextTemplate {
 public:
  // Names of places: 1 to 64 of A-Z a-z 0-9 . _ -. Throws Error(code) as "origin: reason" for a single brace and for
  // a name of other characters.
  TextTemplate(std::string_view text, const std::string& origin, ExitCode code = ExitCode::usage);

  // Each name once, in the order in which they come up.
  const std::vector<std::string>& names() const { return names_; }
  bool has(std::string_view name) const;

  // The text with values in its places. A value is taken as it is: braces in it are no places.
  std::string fill(const std::function<std::string(const std::string& name)>& value) const;

 private:
  struct Piece {
    bool place = false;
    std::string text;  // as it is, or the place's name
  };
  std::vector<Piece> pieces_;
  std::vector<std::string> names_;
};

}  // namespace hrm
