#pragma once
// Lists of words: key=value overrides of a configuration, arguments of a command line.

#include <string>
#include <vector>

namespace hrm::test {

using Overrides = std::vector<std::string>;

// `list` with `more` at its end, where later values win.
inline Overrides with(Overrides list, const Overrides& more) {
  list.insert(list.end(), more.begin(), more.end());
  return list;
}

}  // namespace hrm::test
