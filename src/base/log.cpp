#include "hrm/base/log.h"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <mutex>
#include <utility>

#include "hrm/base/text.h"

namespace hrm::log {
namespace {

struct State {
  std::mutex mutex;
  std::shared_ptr<spdlog::logger> screen;
  std::shared_ptr<spdlog::logger> file;
  // Why the last line could not be written; empty while all is well.
  std::string file_fault;
  int64_t lines_lost = 0;
  bool line_open = false;

  State() {
    screen = spdlog::stderr_color_mt("screen");
    screen->set_pattern("%v");
  }
};

State& state() {
  static State instance;
  return instance;
}

spdlog::level::level_enum to_spdlog(Level level) {
  switch (level) {
    case Level::debug:
      return spdlog::level::debug;
    case Level::info:
      return spdlog::level::info;
    case Level::warn:
      return spdlog::level::warn;
    case Level::error:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

void clear_line(State& s) {
  if (!s.line_open) return;
  std::cerr << "\r\033[K" << std::flush;
  s.line_open = false;
}

// What cannot be written to the file (full disk) is dropped and counted. The program continues, and fails by itself
// where it writes what it needs.
void write_log_file(State& s, Level level, const std::string& text) {
  if (!s.file) return;
  s.file->log(to_spdlog(level), "{}", text);
  if (!s.file_fault.empty()) {
    if (s.lines_lost++ == 0) s.screen->warn("warning: lines of the log file are lost: {}", s.file_fault);
    s.file_fault.clear();
  } else if (s.lines_lost > 0) {
    s.file->warn("{} lines are missing here: they could not be written", std::exchange(s.lines_lost, 0));
    s.file_fault.clear();
  }
}

}  // namespace

bool stderr_is_interactive() {
  const char* no_color = std::getenv("NO_COLOR");
  const char* term = std::getenv("TERM");
  return isatty(STDERR_FILENO) && !(no_color && *no_color) && !(term && std::string(term) == "dumb");
}

void write(Level level, const std::string& given) {
  // Names and other text from data may be part of it: nothing in it may steer a terminal.
  const std::string text = printable_lines(given);
  State& s = state();
  std::lock_guard lock(s.mutex);
  clear_line(s);
  const char* prefix = level == Level::warn ? "warning: " : level == Level::error ? "error: " : "";
  write_log_file(s, level, text);
  s.screen->log(to_spdlog(level), "{}{}", prefix, text);
}

void open_file(const std::filesystem::path& file) {
  State& s = state();
  std::lock_guard lock(s.mutex);
  try {
    auto sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(file.string());
    s.file = std::make_shared<spdlog::logger>("file", sink);
    s.file->set_pattern("%Y-%m-%dT%H:%M:%S.%e %l %v");
    s.file->set_level(spdlog::level::debug);
    s.file->flush_on(spdlog::level::debug);
    // spdlog's own handler prints to stderr.
    s.file->set_error_handler([&s](const std::string& fault) { s.file_fault = fault; });
  } catch (const spdlog::spdlog_ex& e) {
    fail(ExitCode::environment, "cannot open the log file '", file.string(), "': ", e.what());
  }
}

void set_level(Level level) {
  state().screen->set_level(to_spdlog(level));
}

void progress(const std::string& given) {
  const std::string line = printable_lines(given);
  State& s = state();
  std::lock_guard lock(s.mutex);
  if (stderr_is_interactive()) {
    std::cerr << "\r\033[K" << line << std::flush;
    s.line_open = true;
  } else {
    std::cerr << line << std::endl;
  }
  write_log_file(s, Level::info, line);
}

void progress_done() {
  State& s = state();
  std::lock_guard lock(s.mutex);
  if (s.line_open) std::cerr << std::endl;
  s.line_open = false;
}

}  // namespace hrm::log
