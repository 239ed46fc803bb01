#pragma once
// From the names that users type to choices.

#include <string>
#include <utility>
#include <vector>

#include "hrm/base/error.h"
#include "hrm/base/text.h"

namespace hrm::objectives {

// Error(usage): "unknown <what> '...'", the nearest name, and all that there are.
[[noreturn]] inline void fail_unknown(const char* what, const std::string& name,
                                      const std::vector<std::string>& known) {
  std::string all;
  for (const std::string& one : known) all += (all.empty() ? "" : ", ") + one;
  const std::string near = nearest_name(name, known);
  fail(ExitCode::usage, "unknown ", what, " '", printable_start(name), "'",
       near.empty() ? "" : cat("; did you mean '", near, "'?"), near.empty() ? "; it must be one of " : " There are ",
       all);
}

template <class T>
T choice_from_name(const char* what, const std::string& name, const std::vector<std::pair<std::string, T>>& choices) {
  std::vector<std::string> known;
  for (const auto& [text, value] : choices) {
    if (text == name) return value;
    known.push_back(text);
  }
  fail_unknown(what, name, known);
}

}  // namespace hrm::objectives
