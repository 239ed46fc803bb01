#pragma once
// state.safetensors: everything of a run's state that is not a weight. Scalars and slices are in its metadata, exactly.

#include <cstddef>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "hrm/state/registry.h"

namespace hrm::checkpoint {

// Hands the file to `sink`, piece by piece. Tensors on a device come to the host one at a time.
void write_state_file(const StateListing& listing, const std::function<void(std::span<const std::byte>)>& sink);

// The file's content. Tensors are on the CPU. Slices of weights are listed in `slices` too.
struct StateContent {
  std::map<std::string, at::Tensor> tensors;
  std::map<std::string, int64_t> integers;
  std::map<std::string, double> reals;
  std::map<std::string, StateSlice> slices;  // only of split tensors
};

// The entries whose names begin with `prefix` (empty: all); the bytes of other tensors are not touched. Throws
// Error(checkpoint), naming `origin`.
StateContent read_state_file(std::span<const std::byte> bytes, const std::string& origin, const std::string& prefix);

}  // namespace hrm::checkpoint
