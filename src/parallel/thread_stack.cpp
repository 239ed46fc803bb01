#include "parallel/thread_stack.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <thread>

#include "hrm/base/error.h"

namespace hrm::parallel {
namespace {

constexpr int max_calls = 64;
constexpr int hidden_calls = 2;  // the handler and the kernel's way into it

void* calls[max_calls];
std::atomic<int> depth{-1};

// Only notes addresses; the thread that asked looks up names. backtrace() is safe here after a first call elsewhere. If
// it still hangs, thread_stack() waits no longer than its limit.
void note_calls(int) {
  const int saved = errno;
  depth.store(backtrace(calls, max_calls), std::memory_order_release);
  errno = saved;
}

std::string name_of(void* address) {
  Dl_info info{};
  if (dladdr(address, &info) == 0 || info.dli_fname == nullptr) return cat(address);
  std::string file = info.dli_fname;
  file = file.substr(file.rfind('/') + 1);
  const auto offset = [&](const void* from) {
    return cat("+0x", std::hex, static_cast<const char*>(address) - static_cast<const char*>(from));
  };
  if (info.dli_sname == nullptr) return file + offset(info.dli_fbase);
  const std::unique_ptr<char, decltype(&std::free)> plain(
      abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, nullptr), &std::free);
  return cat(file, ": ", plain ? plain.get() : info.dli_sname, offset(info.dli_saddr));
}

}  // namespace

void prepare_thread_stack() {
  void* own[1];
  backtrace(own, 1);
}

std::vector<std::string> thread_stack(pid_t thread, double seconds) {
  const int number = SIGRTMIN + 7;
  struct sigaction action {
  }, before{};
  if (sigaction(number, nullptr, &before) != 0) return {};
  if (before.sa_handler != SIG_DFL && before.sa_handler != note_calls) return {};
  action.sa_handler = note_calls;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  // It stays: a thread that answers late must not end the process.
  if (sigaction(number, &action, nullptr) != 0) return {};
  depth.store(-1);
  if (syscall(SYS_tgkill, getpid(), thread, number) != 0) return {};
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (depth.load(std::memory_order_acquire) < 0) {
    if (std::chrono::steady_clock::now() > end) return {};
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  std::vector<std::string> lines;
  for (int i = hidden_calls; i < depth.load(); ++i) lines.push_back(name_of(calls[i]));
  return lines;
}

}  // namespace hrm::parallel
