#pragma once
// model.pt: a TorchScript archive without code. Torch's own writer makes it, our tensor-only reader takes it apart.

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace hrm::checkpoint {

struct ArchiveEntry {
  std::string name;  // parts joined by dots: modules inside modules
  at::Tensor tensor;
  bool parameter = true;  // else a buffer
};

// The archive in memory: torch's writer aborts the process when its sink fails, and memory does not fail.
std::string build_model_archive(const std::vector<ArchiveEntry>& entries);

// All tensors by dotted name; new CPU tensors. Throws Error(checkpoint), naming `origin`.
std::map<std::string, at::Tensor> read_model_archive(std::span<const std::byte> bytes, const std::string& origin);

}  // namespace hrm::checkpoint
