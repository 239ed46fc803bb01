#pragma once
// The C++ call stacks of the operations that run, with their time on the CPU.

#include <ATen/record_function.h>

#include <filesystem>

namespace hrm {

// Records from construction to destruction, in all threads. Each operation costs tens of microseconds.
class OpStacks {
 public:
  OpStacks();
  ~OpStacks();
  OpStacks(const OpStacks&) = delete;
  OpStacks& operator=(const OpStacks&) = delete;

  // Stops. One line per stack, the longest time first: this program's functions from the outermost on, then the
  // operations, joined by ';', a blank, and microseconds without inner operations. Error(environment).
  void finish(const std::filesystem::path& file);

 private:
  void stop();
  at::CallbackHandle handle_ = at::INVALID_CALLBACK_HANDLE;
};

}  // namespace hrm
