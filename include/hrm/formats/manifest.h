#pragma once
// manifest.json of a checkpoint: size and digest of each file in its folder. checkpoints/README.md describes the
// format.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace hrm::checkpoint {

// Version 1: one file of weights and one of state. Version 2: every rank that saved has written its own part.
inline constexpr int64_t kFormatVersion = 1, kPartsVersion = 2;
inline constexpr int64_t kMostParts = 2000;  // files of a manifest are limited
inline constexpr const char* kModelFile = "model.pt";
inline constexpr const char* kStateFile = "state.safetensors";
inline constexpr const char* kConfigFile = "config.json";
inline constexpr const char* kManifestFile = "manifest.json";

// full: everything needed to resume. weights: only model.pt and the configuration (an import).
enum class CheckpointKind { full, weights };

struct FileFact {
  uint64_t bytes = 0;
  std::string digest;  // XXH3-128, 32 lower-case hex digits
  bool operator==(const FileFact&) const = default;
};

struct Manifest {
  int64_t step = 0;
  CheckpointKind kind = CheckpointKind::full;
  std::map<std::string, std::string> info;
  std::map<std::string, FileFact> files;
  int64_t parts = 1;  // more than one: version 2
  bool operator==(const Manifest&) const = default;
};

// "state-00003-of-00008.safetensors": the file of the part with index 2 of 8.
std::string part_file_name(std::string_view what, int64_t part, int64_t parts);
inline constexpr const char* kModelParts = "model";
inline constexpr const char* kStateParts = "state";

// Writes the text of manifest.json. Its last member is the digest of all bytes before that member's line. Values of
// `info` are written as printable() returns them, or as they are where another manifest was read. Throws
// Error(unexpected) for content that parse_manifest would refuse.
enum class InfoValues { any, read };
std::string manifest_text(const Manifest& manifest, InfoValues values = InfoValues::any);

// The inverse. Throws Error(checkpoint) with only the reason ("manifest.json is damaged"), without a path:
// - A wrong digest, or a duplicate key.
// - More than 4 MiB of text, or more than 4,096 files or entries of `info`.
// - A number that is negative or not whole.
// - A file name that fails is_plain_file_name().
Manifest parse_manifest(std::string_view text);

}  // namespace hrm::checkpoint
