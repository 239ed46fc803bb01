#pragma once
// What became of a run, told to a command of the user's (run.on_event).

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <mutex>
#include <string>

#include "hrm/base/error.h"
#include "hrm/config/run_settings.h"
#include "hrm/parallel/watchdog.h"

namespace hrm::train {

class Trainer;

enum class RunEvent { finished, stopped, diverged, stuck, failed };

// Starts `sh -c command` with `input` on its standard input. What it prints goes to standard error. Waits for at most
// `limit_s` seconds, then kills it with all that it has started. Returns why it failed; empty: it did not. Calls
// `alive` again and again meanwhile. Does not throw. From any thread, also while others hang.
std::string run_with_input(const std::string& command, const std::string& input, double limit_s,
                           const std::function<void()>& alive = {});

class RunEvents {
 public:
  // `main`: rank 0, which tells. With an empty run.on_event nothing is told. `watchdog`: hears that the command is
  // waited for; null: none.
  RunEvents(const config::RunConfig& run, std::filesystem::path folder, bool main,
            parallel::Watchdog* watchdog = nullptr);
  RunEvents(const RunEvents&) = delete;
  RunEvents& operator=(const RunEvents&) = delete;

  // Whose run it is.
  void trains(const Trainer& trainer);

  // Runs the command; a run has one end, so later events are dropped. A command that fails is a warning in the log.
  void tell(RunEvent event, ExitCode code, const std::string& message);
  // Of an error or the watchdog, on every rank. Rank 0 tells; if it is gone, rank 1 does (`rank`: this one).
  void tell_failure(const parallel::Failure& failure, int rank);

  // {"event": "stuck", "run": ..., "folder": ..., "host": ..., "time": ..., "step": ..., "steps": ...,
  // "exit_code": ..., "message": ..., "metrics": {last line of metrics.jsonl}}. What is not known is null.
  std::string json(RunEvent event, ExitCode code, const std::string& message) const;

 private:
  std::string command_, run_;
  std::filesystem::path folder_;
  std::atomic<bool> main_;
  parallel::Watchdog* watchdog_;
  std::atomic<int64_t> steps_{-1};
  std::mutex mutex_;
  bool told_ = false;
};

}  // namespace hrm::train
