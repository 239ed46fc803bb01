#pragma once
// What one configuration field is: the vocabulary of the field lists in config.h. A struct lists its fields once, in
// `describe`; the parser, the help, the printed configuration and the validation all walk that list.

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace hrm::config {

// Inclusive range of an integer field.
struct IntRange {
  int64_t min = std::numeric_limits<int64_t>::min();
  int64_t max = std::numeric_limits<int64_t>::max();
};

// Range of a floating-point field; min_open: min itself is not allowed.
struct RealRange {
  double min = std::numeric_limits<double>::lowest();
  double max = std::numeric_limits<double>::max();
  bool min_open = false;
  bool max_open = false;
};

// The values that a text field may take.
struct OneOf {
  std::vector<std::string> values;
};

struct AnyText {};  // any text, also empty

// A file or folder, or empty: a leading "~/" becomes the home folder.
struct PathText {
  // task=language: several with commas between, each perhaps behind a name and a colon.
  bool list = false;
};

struct Flag {};  // true or false

}  // namespace hrm::config
