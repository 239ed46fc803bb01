#pragma once
// Runs hrm_train as its users do, with its output in files.

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "hrm/base/error.h"
#include "support/paths.h"
#include "support/ready_program.h"
#include "support/temp_dir.h"

namespace hrm::test {

struct Result {
  int code = -1;
  std::string out, err;
};

struct Surroundings {
  std::string shell = "";        // commands before it, e.g. "ulimit -f 100;"
  std::string environment = "";  // e.g. "WORLD_SIZE=2"
  std::string input = "";        // its stdin
};

inline std::string read(const std::filesystem::path& file) {
  std::stringstream text;
  text << std::ifstream(file, std::ios::binary).rdbuf();
  return text.str();
}

inline std::string quoted(const std::string& word) {
  std::string out = "'";
  for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

// Runs hrm_train with these arguments on one CPU thread and no GPU in sight. A run that asks for nothing of its
// surroundings but stdin begins in a program that is loaded already (ready_program.h).
inline Result run(const std::vector<std::string>& arguments, const Surroundings& around = {}) {
  const TempDir dir;
  std::ofstream(dir / "in") << around.input;
  const auto result = [&](int code) { return Result{code, read(dir / "out"), read(dir / "err")}; };
  if (around.shell.empty() && around.environment.empty()) return result(ready_program().run(arguments, dir.path()));
  std::string command = around.shell + " CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS=1 " + around.environment +
                        " timeout 60 " + quoted(test::train_binary());
  for (const std::string& argument : arguments) command += " " + quoted(argument);
  for (const char* stream : {" <in", " >out", " 2>err"}) {
    const std::string text = stream;
    const size_t name = text.find_last_of("<>") + 1;
    command += text.substr(0, name) + quoted((dir / text.substr(name)).string());
  }
  const int status = std::system(command.c_str());
  return result(WIFEXITED(status) ? WEXITSTATUS(status) : -1);
}

// stderr ends with one line "error: ..." that holds all these parts, has no other, and shows nothing of the program's
// inside. Before the error there may be lines that report progress, unless it has to be `alone`.
inline void expect_one_sentence(const std::string& err, const std::vector<std::string>& parts, bool alone) {
  std::vector<std::string> lines;
  std::istringstream text(err);
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  ASSERT_FALSE(lines.empty()) << "stderr is empty";
  const auto is_error = [](const std::string& line) { return line.starts_with("error: "); };
  EXPECT_EQ(std::count_if(lines.begin(), lines.end(), is_error), 1) << err;
  EXPECT_TRUE(is_error(lines.back())) << err;
  EXPECT_TRUE(err.ends_with("\n")) << err;
  if (alone) {
    EXPECT_EQ(lines.size(), 1u) << err;
  }
  for (const std::string& part : parts) {
    EXPECT_NE(lines.back().find(part), std::string::npos) << "'" << part << "' is not in: " << err;
  }
  for (const char* inside : {"Exception raised from", "frame #", "c10::", "std::", "enforce fail", "terminate called",
                             "unexpected error", "LOG ERROR", "core dumped"}) {
    EXPECT_EQ(err.find(inside), std::string::npos) << "'" << inside << "' is in: " << err;
  }
}

// The arguments are refused with this code and by one sentence alone; stdout stays empty. Returns what was printed.
inline Result expect_refusal(ExitCode code, const std::vector<std::string>& arguments,
                             const std::vector<std::string>& parts, const Surroundings& around = {},
                             bool alone = true) {
  std::string line = around.shell + around.environment + " hrm_train";
  for (const std::string& argument : arguments) line += " " + argument;
  SCOPED_TRACE(line);
  const Result result = run(arguments, around);
  EXPECT_EQ(result.code, static_cast<int>(code)) << result.err;
  EXPECT_EQ(result.out, "");
  expect_one_sentence(result.err, parts, alone);
  return result;
}

}  // namespace hrm::test
