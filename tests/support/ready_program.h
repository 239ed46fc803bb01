#pragma once
// hrm_train, loaded once for many runs: loading LibTorch takes longer than most of them.

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <vector>

namespace hrm::test {

// A process of hrm_train that waits before main() and runs main() in a child for each run (tests/fault/ready.c).
class ReadyProgram {
 public:
  ReadyProgram();
  ~ReadyProgram();
  ReadyProgram(const ReadyProgram&) = delete;
  ReadyProgram& operator=(const ReadyProgram&) = delete;

  // Runs main() with these arguments; stdin, stdout and stderr are the files in, out and err of `dir`. Returns the exit
  // code as a shell gives it: 128 and the signal's number for a killed run, 124 after a minute.
  int run(const std::vector<std::string>& arguments, const std::filesystem::path& dir);

 private:
  int link_ = -1;
  pid_t pid_ = -1;
};

// The one of this test program, started by the first call.
ReadyProgram& ready_program();

}  // namespace hrm::test
