#pragma once
// manifest.json: what a checkpoint directory must hold, byte for byte. No tensors here.

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "hrm/base/file.h"
#include "hrm/checkpoint/checkpoint.h"

namespace hrm::checkpoint {

inline constexpr int64_t kFormatVersion = 1;
inline constexpr const char* kModelFile = "model.pt";
inline constexpr const char* kStateFile = "state.safetensors";
inline constexpr const char* kConfigFile = "config.json";
inline constexpr const char* kManifestFile = "manifest.json";

struct FileFact {
  uint64_t bytes = 0;
  std::string digest;  // XXH3-128, hex
};

struct Manifest {
  int64_t step = 0;
  CheckpointKind kind = CheckpointKind::full;
  std::map<std::string, std::string> info;
  std::map<std::string, FileFact> files;
};

// The text of manifest.json. Its last member is the digest of all bytes before that member's line.
std::string manifest_text(const Manifest& manifest);

// The inverse. Throws Error(checkpoint) with the reason alone ("manifest.json is damaged"), without a path.
Manifest parse_manifest(std::string_view text);

// "step-000000042"
std::string step_name(int64_t step);

// The number in such a name, -1 for any other name.
int64_t step_of_name(const std::string& name);

// A checkpoint directory whose manifest and files have been found right; the files stay mapped.
class VerifiedCheckpoint {
 public:
  // Throws Error(checkpoint): a sentence that names the directory and what is wrong with it.
  explicit VerifiedCheckpoint(const std::filesystem::path& dir);
  // The same, looking at `only` among the files: the others are neither read nor given by file().
  VerifiedCheckpoint(const std::filesystem::path& dir, const std::string& only);

  const std::filesystem::path& dir() const { return dir_; }
  const Manifest& manifest() const { return manifest_; }
  // Of a file that was looked at, and that a checkpoint of this kind has.
  std::span<const std::byte> file(const std::string& name) const { return files_.at(name).bytes(); }
  CheckpointMeta meta() const;

 private:
  void verify(const std::string& only);

  std::filesystem::path dir_;
  Manifest manifest_;
  std::map<std::string, MappedFile> files_;
};

}  // namespace hrm::checkpoint
