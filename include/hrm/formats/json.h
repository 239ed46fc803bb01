#pragma once
// Parses untrusted JSON within limits. The library itself accepts any size and depth, and silently keeps the last of
// several equal keys.

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "hrm/base/error.h"

namespace hrm {

struct JsonLimits {
  size_t bytes = size_t{1} << 20;
  int depth = 8;  // nesting of objects and arrays; a text that is only a number has depth 0
};

// Throws Error(code) as "origin: reason". Errors are a text that is too long or too deep, a duplicate key in an object,
// and invalid JSON (with the place and what was expected). The value is safe for recursive functions (dump, copy,
// compare).
nlohmann::json parse_json(std::string_view text, const std::string& origin, ExitCode code,
                          const JsonLimits& limits = {});

}  // namespace hrm
