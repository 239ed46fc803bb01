#pragma once
// A checkpoint for another number of ranks, written without them.

#include <cstdint>
#include <filesystem>

namespace hrm::checkpoint {

// Writes the checkpoint in `dir`, of any number of parts, as one of `ranks` parts: the new folder `out`, whole or not
// at all. With one it has the files of a run of one rank, and the weights and averages need their room on the disk
// twice meanwhile. Otherwise every tensor is cut into equal parts. The host holds one tensor at a time. All digests are
// verified first. Throws Error(usage) for a number of ranks that cannot be, Error(checkpoint) for a checkpoint that is
// damaged or of kind weights, Error(environment) where it cannot write, also if `out` is there already and not empty.
void reshard(const std::filesystem::path& dir, int64_t ranks, const std::filesystem::path& out);

}  // namespace hrm::checkpoint
