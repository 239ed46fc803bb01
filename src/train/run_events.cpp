#include "train/run_events.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "hrm/base/file.h"
#include "hrm/base/log.h"
#include "hrm/base/text.h"
#include "hrm/train/trainer.h"
#include "train/run_folder.h"

namespace hrm::train {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kLimitSeconds = 10;
constexpr std::array<const char*, 5> kNames{"finished", "stopped", "diverged", "stuck", "failed"};

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  std::array<char, 32> text{};
  return {text.data(), std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts)};
}

// The last complete line of metrics.jsonl; null where there is none.
Json last_metrics(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary | std::ios::ate);
  constexpr std::streamoff kMostBytes = 1 << 20;
  const std::streamoff size = in ? static_cast<std::streamoff>(in.tellg()) : 0;
  if (size <= 0) return nullptr;
  std::string text(static_cast<size_t>(std::min(size, kMostBytes)), '\0');
  in.seekg(size - static_cast<std::streamoff>(text.size()));
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  Json last;
  size_t end = text.rfind('\n');
  if (end == std::string::npos) return last;
  const size_t begin = end == 0 ? std::string::npos : text.rfind('\n', end - 1);
  const std::string line = text.substr(begin == std::string::npos ? 0 : begin + 1, end - (begin + 1));
  last = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  return last.is_object() ? last : Json();
}

// A process of its own group, so that it can be ended with all that it starts, and a terminal's Ctrl-C does not reach
// it. Returns 0, or errno.
int spawn_shell(const std::string& command, int input, pid_t& child) {
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&files);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_adddup2(&files, input, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&files, STDERR_FILENO, STDOUT_FILENO);
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  std::string shell = "sh", option = "-c", words = command;
  const std::array<char*, 4> arguments{shell.data(), option.data(), words.data(), nullptr};
  const int error = posix_spawn(&child, "/bin/sh", &files, &attributes, arguments.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  return error;
}

}  // namespace

std::string run_with_input(const std::string& command, const std::string& input, double limit_s,
                           const std::function<void()>& alive) {
  // A file, not a pipe: a command that does not read it keeps nobody waiting.
  const int file = memfd_create("event", MFD_CLOEXEC);
  if (file < 0) return cat("no memory for its input: ", std::strerror(errno));
  pid_t child = -1;
  std::string fault;
  try {
    write_all(file, "its input", as_bytes(input));
  } catch (const Error& error) {
    fault = error.what();
  }
  lseek(file, 0, SEEK_SET);
  if (fault.empty()) {
    const int error = spawn_shell(command, file, child);
    if (error != 0) fault = cat("it does not start: ", std::strerror(error));
  }
  close(file);
  if (!fault.empty()) return fault;

  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(limit_s);
  int status = 0;
  pid_t ended = 0;
  while ((ended = waitpid(child, &status, WNOHANG)) == 0 || (ended < 0 && errno == EINTR)) {
    if (std::chrono::steady_clock::now() >= end) {
      kill(-child, SIGKILL);
      waitpid(child, &status, 0);
      return cat("it took longer than ", human_seconds(limit_s), " and was ended");
    }
    if (alive) alive();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  if (ended < 0) return cat("its end is not known: ", std::strerror(errno));
  if (WIFSIGNALED(status)) return cat("it ended by signal ", WTERMSIG(status));
  return WEXITSTATUS(status) == 0 ? "" : cat("it ended with code ", WEXITSTATUS(status));
}

RunEvents::RunEvents(const config::RunConfig& run, std::filesystem::path folder, bool main,
                     parallel::Watchdog* watchdog)
    : command_(run.on_event), run_(run.name), folder_(std::move(folder)), main_(main), watchdog_(watchdog) {}

void RunEvents::trains(const Trainer& trainer) {
  steps_.store(trainer.total_steps());
}

void RunEvents::tell(RunEvent event, ExitCode code, const std::string& message) {
  const std::lock_guard lock(mutex_);
  if (!main_ || command_.empty() || std::exchange(told_, true)) return;
  try {
    const std::string fault = run_with_input(command_, json(event, code, message), kLimitSeconds, [&] {
      if (watchdog_ != nullptr) watchdog_->at(steps_.load(), "run.on_event");
    });
    if (!fault.empty()) log::warn("run.on_event (", kNames[static_cast<size_t>(event)], "): ", fault);
  } catch (const std::exception& error) {
    log::warn("run.on_event (", kNames[static_cast<size_t>(event)], "): ", error.what());
  }
}

void RunEvents::tell_failure(const parallel::Failure& failure, int rank) {
  if (rank == 1 && failure.rank == 0 && !failure.stuck && failure.code == ExitCode::rank_failed) main_ = true;
  tell(failure.stuck                        ? RunEvent::stuck
       : failure.code == ExitCode::diverged ? RunEvent::diverged
                                            : RunEvent::failed,
       failure.code, failure.sentence);
}

std::string RunEvents::json(RunEvent event, ExitCode code, const std::string& message) const {
  Json json;
  std::error_code error;
  json["event"] = kNames[static_cast<size_t>(event)];
  json["run"] = run_;
  json["folder"] = std::filesystem::absolute(folder_, error).string();
  json["host"] = host_name();
  json["time"] = utc_now();
  const Json metrics = last_metrics(folder_ / "metrics.jsonl");
  json["step"] = metrics.is_object() && metrics.contains("step") ? metrics["step"] : Json();
  json["steps"] = steps_.load() >= 0 ? Json(steps_.load()) : Json();
  json["exit_code"] = static_cast<int>(code);
  json["message"] = message;
  json["metrics"] = metrics;
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace hrm::train
