#pragma once
// Logging facade: stderr and, once opened, a file per rank. only log.cpp uses spdlog, because its fmt
// clashes with the one in torch's headers.

#include <filesystem>
#include <string>

#include "hrm/base/error.h"

namespace hrm::log {

enum class Level { debug, info, warn, error };

// Control characters but line breaks and tabs are written as \xNN (hrm/base/text.h).
void write(Level level, const std::string& text);

// Also writes every line, with time and level, to this file (appending). Throws Error(environment) when it cannot.
void open_file(const std::filesystem::path& file);

void set_level(Level level);

template <class... Args>
void debug(const Args&... args) {
  write(Level::debug, cat(args...));
}
template <class... Args>
void info(const Args&... args) {
  write(Level::info, cat(args...));
}
template <class... Args>
void warn(const Args&... args) {
  write(Level::warn, cat(args...));
}
template <class... Args>
void error(const Args&... args) {
  write(Level::error, cat(args...));
}

// One line that is rewritten in place on a terminal and printed plainly elsewhere. A log line that comes in between
// clears it first.
void progress(const std::string& line);
// Ends the line in place, if there is one.
void progress_done();

// True when stderr is a terminal and NO_COLOR is unset.
bool stderr_is_interactive();

}  // namespace hrm::log
