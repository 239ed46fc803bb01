#pragma once
// A checkpoint directory beside its manifest. No tensors here.

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>

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

// A checkpoint directory whose manifest and files have been found right; the files are in memory. (Not mapped: a bad
// sector, or a file that is cut meanwhile, would end the process instead of being found.)
class VerifiedCheckpoint {
 public:
  // Throws Error(checkpoint): a sentence that names the directory and what is wrong with it.
  explicit VerifiedCheckpoint(const std::filesystem::path& dir);
  // The same, looking at `only` among the files: the others are neither read nor given by file().
  VerifiedCheckpoint(const std::filesystem::path& dir, const std::string& only);

  const std::filesystem::path& dir() const { return dir_; }
  const Manifest& manifest() const { return manifest_; }
  // Of a file that was looked at, and that a checkpoint of this kind has.
  std::span<const std::byte> file(const std::string& name) const { return as_bytes(files_.at(name)); }
  CheckpointMeta meta() const;

 private:
  void verify(const std::string& only);

  std::filesystem::path dir_;
  Manifest manifest_;
  std::map<std::string, std::string> files_;
};

}  // namespace hrm::checkpoint
