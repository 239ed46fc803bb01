#pragma once
// Runs the Python that belongs to the torch wheel, as an oracle for files that other programs must be able to read.

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "hrm/base/error.h"
#include "support/paths.h"

namespace hrm::test {

struct PythonResult {
  int status = -1;
  std::string output;  // stdout and stderr
};

inline PythonResult run_command(const std::string& command) {
  PythonResult result;
  FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return result;
  char buffer[4096];
  for (size_t got; (got = fread(buffer, 1, sizeof buffer, pipe)) > 0;) result.output.append(buffer, got);
  const int status = pclose(pipe);
  result.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return result;
}

// The interpreter of the environment that holds the torch wheel; empty when it cannot import torch.
inline const std::string& python_with_torch() {
  static const std::string python = [] {
    const std::filesystem::path site = test::site_packages();
    const std::filesystem::path own = site.parent_path().parent_path().parent_path() / "bin" / "python";
    for (const std::string& candidate : {own.string(), std::string("python3")}) {
      const std::string command = "PYTHONPATH='" + site.string() + "' '" + candidate + "'";
      if (run_command(command + " -c 'import torch'").status == 0) return command;
    }
    return std::string();
  }();
  return python;
}

// Runs a script; `arguments` must need no quoting.
inline PythonResult run_python(const std::filesystem::path& script_file, const std::string& script,
                               const std::string& arguments) {
  std::ofstream(script_file) << script;
  return run_command(python_with_torch() + " '" + script_file.string() + "' " + arguments);
}

}  // namespace hrm::test
