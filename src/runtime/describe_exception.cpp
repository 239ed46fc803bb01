#include "hrm/runtime/describe_exception.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <filesystem>
#include <new>

#include "hrm/runtime/memory_history.h"

namespace hrm {
namespace {

constexpr const char* kNoMemory =
    "this machine has not enough free memory; lower train.global_batch_size, train.micro_batch_size, eval.batch_size "
    "or the model's sizes";

std::string first_line(std::string text) {
  text.resize(std::min(text.find('\n'), text.size()));
  return text;
}

}  // namespace

Described describe_exception(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const Error& e) {
    return {e.code(), e.what()};
  } catch (const c10::OutOfMemoryError& e) {
    return {ExitCode::environment,
            cat("the GPU has not enough free memory; lower train.micro_batch_size or eval.batch_size (",
                first_line(e.what_without_backtrace()), ")", out_of_memory_text())};
  } catch (const c10::Error& e) {
    const std::string text = first_line(e.what_without_backtrace());
    // The CPU allocator has no exception type of its own.
    const size_t allocator = text.find("DefaultCPUAllocator");
    if (allocator != std::string::npos) {
      return {ExitCode::environment, cat(kNoMemory, " (", text.substr(allocator), ")")};
    }
    return {ExitCode::unexpected, cat("unexpected error: ", text)};
  } catch (const std::bad_alloc&) {
    return {ExitCode::environment, kNoMemory};
  } catch (const std::filesystem::filesystem_error& e) {
    return {ExitCode::environment, first_line(e.what())};
  } catch (const std::exception& e) {
    return {ExitCode::unexpected, cat("unexpected error: ", first_line(e.what()))};
  }
}

}  // namespace hrm
