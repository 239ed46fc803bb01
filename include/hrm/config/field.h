#pragma once
// What one configuration field is: the vocabulary of the field lists in the *_settings.h headers. A struct lists its
// fields once, in `describe`; the parser, the help, the printed configuration and the checks all walk that list.
//
// A line is f(name, member, rule, unit, help, facts...). A section's line is f(name, member, help, facts...); its facts
// hold for every field of it that does not say otherwise.

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <ostream>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "hrm/base/error.h"

namespace hrm::config {

// --- rules: the values that a field accepts ---

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

// The values of a text field.
struct OneOf {
  std::vector<std::string> values;
};

// The spellings of an enum's values, in their order; each enum of the configuration has a specialisation with
// `static constexpr const char* kNames[]`.
template <class E>
struct EnumNames;

template <class E>
constexpr const char* name_of(E value) {
  return EnumNames<E>::kNames[static_cast<size_t>(value)];
}

// The value of this name; Error(unexpected) where there is none.
template <class E>
E value_of_name(std::string_view name) {
  for (size_t i = 0; i < std::size(EnumNames<E>::kNames); ++i) {
    if (name == EnumNames<E>::kNames[i]) return static_cast<E>(i);
  }
  fail(ExitCode::unexpected, "'", name, "' names no value");
}

template <class E, auto = std::size(EnumNames<E>::kNames)>
std::ostream& operator<<(std::ostream& out, E value) {
  return out << name_of(value);
}

// The values of an enum field.
template <class E>
struct Choice {};

struct AnyText {};  // any text, also empty

// A file or folder, or empty: a leading "~/" becomes the home folder.
struct PathText {
  // A task may read several, with commas between, each perhaps behind a name and a colon (TaskSettings::lists_paths).
  bool list = false;
};

struct Flag {};  // true or false

// --- facts: what else is known of a field ---

// The tasks that read the field, with spaces between; without this fact all of them do. A setting of another task is
// refused.
struct Tasks {
  const char* names;
};

// Whether a run may be resumed with another value.
enum class Resume {
  fixed,         // no: other samples, other draws, or something else computed from them
  architecture,  // no: the checkpoint's weights are another model's
  free,
};

// Another name of the field: of an older version or of another system.
struct OtherName {
  const char* name;
  bool inverted = false;  // its true is our false
};

// The field is read only while `key` has one of `values` (`unless`: none of them). If somebody sets it while it is not
// read, the run is refused: "KEY has no effect, for OTHER WHY; leave it out, or WAY_OUT". The first condition that does
// not hold is named.
struct ReadWhen {
  const char* key;
  std::vector<std::string> values;  // as `config` prints them, without quotes
  const char* why;
  const char* way_out;  // empty: none but leaving it out
  bool unless = false;
};

}  // namespace hrm::config
