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

// Of our own Error what it says; of memory that ran out, on the GPU or here, what to lower; of all else the first line
// (libraries append stack traces) as an unexpected error.
Described describe_exception(const std::exception_ptr& exception);

}  // namespace hrm
