// hrm_train: trains puzzle models, language models and causal language models, evaluates them and lets them answer. The
// subcommands and their options are in commands/line; here every failure becomes one sentence and an exit code.

#include <signal.h>

#include <cstdlib>
#include <exception>
#include <iostream>

#include "commands/line/command_line.h"
#include "hrm/base/error.h"
#include "hrm/base/failpoint.h"
#include "hrm/base/log.h"
#include "hrm/base/text.h"
#include "hrm/runtime/describe_exception.h"

int main(int argc, char** argv) {
  using hrm::ExitCode;
  // A write beyond the file size limit (ulimit -f) then fails as one to a full disk does, and is reported like it.
  signal(SIGXFSZ, SIG_IGN);
  try {
    if (const char* orders = std::getenv("HRM_FAIL"); orders != nullptr && *orders != 0) {
      hrm::failpoint::arm(orders);
      hrm::log::warn("HRM_FAIL is set: this program will fail on purpose (", hrm::printable(orders), ")");
    }
    const int done = hrm::run_command_line(argc, argv);
    // Results that did not arrive are no success: a full disk behind a redirection, a closed pipe.
    std::cout.flush();
    hrm::require(std::cout.good(), ExitCode::environment,
                 "the results could not be written to standard output; is the disk full, or did the reader go away?");
    return done;
  } catch (...) {
    const hrm::Described error = hrm::describe_exception(std::current_exception());
    hrm::log::error(error.sentence);
    return static_cast<int>(error.code);
  }
}
