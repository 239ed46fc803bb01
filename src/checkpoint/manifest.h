#pragma once
// A checkpoint directory and its manifest.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/part_file.h"
#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/checkpoint/checkpoint.h"
#include "hrm/formats/manifest.h"

namespace hrm::checkpoint {

// "step-000000042"
std::string step_name(int64_t step);

// The number in such a name, -1 for any other name.
int64_t step_of_name(const std::string& name);

// A checkpoint that could not be read just now (I/O error, no permission, too many open files): it may be good.
class UnreadableCheckpoint : public Error {
 public:
  using Error::Error;
};

// Which files are compared with their digests when a checkpoint is opened.
enum class Check {
  all,
  used,   // of a checkpoint in parts only those from which something is read, when it is; of others all
  state,  // the files of the state, as above
  meta,   // the configuration alone
};

// A checkpoint directory whose manifest and files have been found right. The configuration is in memory; of all else
// the headers are, and tensors are read when they are asked for. (Nothing is mapped: a bad sector, or a file that is
// cut meanwhile, would end the process instead of being found.)
class VerifiedCheckpoint {
 public:
  // Throws Error(checkpoint): a sentence that names the directory and what is wrong with it.
  explicit VerifiedCheckpoint(const std::filesystem::path& dir, Check check = Check::all);

  const std::filesystem::path& dir() const { return dir_; }
  const Manifest& manifest() const { return manifest_; }
  std::span<const std::byte> configuration() const { return as_bytes(configuration_); }
  // The files of the state, and those of the weights or model.pt, in the order of the parts.
  const std::vector<std::shared_ptr<PartFile>>& state_parts() const { return state_parts_; }
  const std::vector<std::shared_ptr<PartFile>>& model_parts() const { return model_parts_; }
  CheckpointMeta meta() const;

  // Runs work that reads part files; what is wrong with them is thrown as by the constructor.
  void guard(const std::function<void()>& work) const;

 private:
  void verify(Check check);
  void open_parts(std::vector<std::shared_ptr<PartFile>>& files, const char* what);

  std::filesystem::path dir_;
  Manifest manifest_;
  std::string configuration_;
  std::vector<std::shared_ptr<PartFile>> state_parts_, model_parts_;
};

}  // namespace hrm::checkpoint
