#pragma once
// One exported file, whole or not at all.

#include <cstddef>
#include <filesystem>
#include <span>

namespace hrm::checkpoint {

// Writes beside the target, syncs, and renames. Creates the folder. Throws Error(environment); then nothing is left
// and an older file of that name is as it was.
void replace_file(const std::filesystem::path& file, std::span<const std::byte> bytes);

}  // namespace hrm::checkpoint
