#pragma once
// One exported folder, whole or not at all.

#include <filesystem>
#include <functional>

namespace hrm::checkpoint {

// Gives `fill` a new folder beside the target to write its files into, syncs, and renames it. Creates the folders
// above. Throws Error(environment), also where `folder` is there already and not empty; then nothing is left.
void write_folder(const std::filesystem::path& folder, const std::function<void(const std::filesystem::path&)>& fill);

}  // namespace hrm::checkpoint
