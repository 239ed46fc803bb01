#pragma once
// The folder of a run: who may write and read in it, and the facts about the process that does.

#include <filesystem>
#include <string>

#include "hrm/runtime/device.h"

namespace hrm::train {

// Files and folders that this process creates are for its user alone (0700), or for its group to read (0750).
void set_creation_mask(bool group_readable);

// Creates the folder and keeps other processes from training in it while this object lives. The lock ends with the
// process; its file says who has it. Throws Error(environment): another process trains there, the folder belongs to
// another user or may be written by everyone, or it cannot be written.
class RunLock {
 public:
  explicit RunLock(const std::filesystem::path& run_dir);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  int fd_;
};

// This machine's name; "unknown" where the system does not tell.
std::string host_name();

// environment.json: device, build, host, and environment variables that affect a training. Values whose names suggest a
// secret are not written.
void write_environment(const std::filesystem::path& run_dir, const Runtime& runtime);

}  // namespace hrm::train
