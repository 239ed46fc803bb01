#pragma once
// Errors that reach a user, and the exit codes of the program.

#include <sstream>
#include <stdexcept>
#include <string>

namespace hrm {

// The program's exit codes; documented in README.md, tested in tests/cli.
enum class ExitCode : int {
  done = 0,
  unexpected = 1,   // a bug of ours, or a failure nobody foresaw
  usage = 2,        // command line or configuration
  environment = 3,  // no usable device, missing library, no permission
  data = 4,         // a data file is missing, malformed or inconsistent
  checkpoint = 5,   // a checkpoint is missing, corrupt or of another model
  diverged = 6,     // non-finite loss or gradient
  rank_failed = 7,  // another rank of the training is gone or did not come, or it is stuck: start it again
  stopped = 75,     // stopped by a signal after saving: start it again (EX_TEMPFAIL)
};

// An error with one clear sentence for the user: what, where, what to do.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& sentence) : std::runtime_error(sentence), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

// Joins its arguments as a stream would: cat("step ", 3) == "step 3".
template <class... Args>
std::string cat(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return out.str();
}

// Throws Error(code, cat(args...)).
template <class... Args>
[[noreturn]] void fail(ExitCode code, const Args&... args) {
  throw Error(code, cat(args...));
}

// fail() unless the condition holds.
template <class... Args>
void require(bool condition, ExitCode code, const Args&... args) {
  if (!condition) fail(code, args...);
}

}  // namespace hrm
