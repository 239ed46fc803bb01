#pragma once
// The files of a checkpoint on their way to the disk.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "hrm/formats/manifest.h"

namespace hrm::checkpoint {

using Sink = std::function<void(std::span<const std::byte>)>;

// A file to be written.
struct Member {
  std::string name;
  uint64_t bytes;  // at most, to be reserved; what a file is beyond it is found out by writing
  std::function<void(const Sink&)> produce;
};

// Writes and syncs them, in order. Throws Error(environment).
std::map<std::string, FileFact> write_members(const std::filesystem::path& folder, const std::vector<Member>& members);
void write_manifest(const std::filesystem::path& folder, const Manifest& manifest, InfoValues values = InfoValues::any);

}  // namespace hrm::checkpoint
