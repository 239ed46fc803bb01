#pragma once
// Every failure as one sentence and an exit code.

#include <exception>
#include <string>

#include "hrm/base/error.h"

namespace hrm {

struct Described {
  ExitCode code;
  std::string sentence;
};

// For our own Error, its sentence. For exhausted memory, on the GPU or the host, what to lower. For everything else,
// the first line (libraries append stack traces) as an unexpected error.
Described describe_exception(const std::exception_ptr& exception);

}  // namespace hrm
