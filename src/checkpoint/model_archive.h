#pragma once
// model.pt: a TorchScript archive without code. Torch's own writer makes it; part_file.h reads it.

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace hrm::checkpoint {

struct ArchiveEntry {
  std::string name;  // parts joined by dots: modules inside modules
  at::Tensor tensor;
  bool parameter = true;  // else a buffer
};

// Hands the archive to `sink`, piece by piece; what that throws is thrown again. Holds copies of tensors that are on a
// device, but no copy of the archive.
void write_model_archive(const std::vector<ArchiveEntry>& entries,
                         const std::function<void(std::span<const std::byte>)>& sink);

}  // namespace hrm::checkpoint
