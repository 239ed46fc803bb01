// hrm_train: trains HRM and TRM puzzle models, evaluates them, and solves puzzles with them. The subcommands and their
// options are in command_line.cpp; here every failure becomes one sentence and an exit code.

#include <c10/util/Exception.h>

#include <exception>
#include <new>

#include "command_line.h"
#include "hrm/base/error.h"
#include "hrm/base/log.h"

int main(int argc, char** argv) {
  using hrm::ExitCode;
  ExitCode code = ExitCode::unexpected;
  try {
    return hrm::run_command_line(argc, argv);
  } catch (const hrm::Error& e) {
    hrm::log::error(e.what());
    code = e.code();
  } catch (const c10::OutOfMemoryError& e) {
    hrm::log::error("the GPU has not enough free memory; lower train.micro_batch_size or eval.batch_size (",
                    e.what_without_backtrace(), ")");
    code = ExitCode::environment;
  } catch (const std::bad_alloc&) {
    hrm::log::error("this machine has not enough free memory; lower train.micro_batch_size or eval.batch_size");
    code = ExitCode::environment;
  } catch (const std::exception& e) {
    hrm::log::error("unexpected error: ", e.what());
  }
  return static_cast<int>(code);
}
