// hrm_train: trains HRM and TRM puzzle models, evaluates them, and solves puzzles with them. The subcommands and their
// options are in command_line.cpp; here every failure becomes one sentence and an exit code.

#include <c10/util/Exception.h>
#include <signal.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <iostream>
#include <new>
#include <string>

#include "command_line.h"
#include "hrm/base/error.h"
#include "hrm/base/log.h"

namespace {

constexpr const char* kNoMemory =
    "this machine has not enough free memory; lower train.global_batch_size, train.micro_batch_size, eval.batch_size "
    "or the model's sizes";

// The first line: libraries append stack traces.
std::string first_line(std::string text) {
  text.resize(std::min(text.find('\n'), text.size()));
  return text;
}

}  // namespace

int main(int argc, char** argv) {
  using hrm::ExitCode;
  // A write beyond the file size limit (ulimit -f) then fails as one to a full disk does, and is reported like it.
  signal(SIGXFSZ, SIG_IGN);
  ExitCode code = ExitCode::unexpected;
  try {
    const int done = hrm::run_command_line(argc, argv);
    // Results that did not arrive are no success: a full disk behind a redirection, a closed pipe.
    std::cout.flush();
    hrm::require(std::cout.good(), ExitCode::environment,
                 "the results could not be written to standard output; is the disk full, or did the reader go away?");
    return done;
  } catch (const hrm::Error& e) {
    hrm::log::error(e.what());
    code = e.code();
  } catch (const c10::OutOfMemoryError& e) {
    hrm::log::error("the GPU has not enough free memory; lower train.micro_batch_size or eval.batch_size (",
                    first_line(e.what_without_backtrace()), ")");
    code = ExitCode::environment;
  } catch (const c10::Error& e) {
    const std::string text = first_line(e.what_without_backtrace());
    // The CPU allocator has no exception type of its own.
    if (text.find("DefaultCPUAllocator") != std::string::npos) {
      hrm::log::error(kNoMemory, " (", text.substr(text.find("DefaultCPUAllocator")), ")");
      code = ExitCode::environment;
    } else {
      hrm::log::error("unexpected error: ", text);
    }
  } catch (const std::bad_alloc&) {
    hrm::log::error(kNoMemory);
    code = ExitCode::environment;
  } catch (const std::filesystem::filesystem_error& e) {
    hrm::log::error(first_line(e.what()));
    code = ExitCode::environment;
  } catch (const std::exception& e) {
    hrm::log::error("unexpected error: ", first_line(e.what()));
  }
  return static_cast<int>(code);
}
