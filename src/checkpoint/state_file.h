#pragma once
// What a checkpoint holds, whether one rank wrote it or several: the entries of its files, as the program registers
// them.

#include <map>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "checkpoint/part_file.h"
#include "checkpoint/stored_tensor.h"
#include "hrm/state/registry.h"

namespace hrm::checkpoint {

// The entries of a listing for a file of the state, or of the weights. `part`: leaves out those of which this rank
// holds nothing.
std::vector<FileEntry> state_entries(const StateListing& listing, PartNumber part);
std::vector<FileEntry> weight_entries(const StateListing& listing, PartNumber part);

// The integers and reals of a listing, exactly, as metadata of the state's file.
std::map<std::string, std::string> scalar_texts(const std::vector<std::pair<std::string, int64_t>>& integers,
                                                const std::vector<std::pair<std::string, double>>& reals);

// The state of a checkpoint; tensors are read when they are asked for.
struct StateContent {
  std::map<std::string, StoredTensor> tensors;
  std::map<std::string, int64_t> integers;
  std::map<std::string, double> reals;
};

// Of kind full: the entries whose names begin with `prefix` (empty: all). Throws Error(checkpoint) or
// Error(environment): call it within VerifiedCheckpoint::guard.
StateContent stored_state(const VerifiedCheckpoint& checkpoint, const std::string& prefix);

// The weights and averages, by their names in the model's file (archive_name).
std::map<std::string, StoredTensor> stored_model(const VerifiedCheckpoint& checkpoint);

}  // namespace hrm::checkpoint
