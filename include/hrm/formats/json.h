#pragma once
// JSON from others, within limits. The library by itself would accept a text of any size and depth, and silently keep
// the last of equal keys.

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "hrm/base/error.h"

namespace hrm {

struct JsonLimits {
  size_t bytes = size_t{1} << 20;
  int depth = 8;  // objects and arrays inside one another; a text that is one number has depth 0
};

// Throws Error(code) as "origin: reason": too long, too deep, a key twice in one object, or invalid JSON (where, and
// what was expected). The value is safe for functions that recurse (dump, copies, comparisons).
nlohmann::json parse_json(std::string_view text, const std::string& origin, ExitCode code,
                          const JsonLimits& limits = {});

}  // namespace hrm
