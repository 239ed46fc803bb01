#pragma once
// The weights of a saved model: one file of safetensors or of torch.save, or several with an index, all mapped into
// memory.

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "hrm/base/error.h"
#include "hrm/formats/safetensors.h"

namespace hrm {

// model.safetensors.index.json, or pytorch_model.bin.index.json: which shard each tensor is in; a file of its folder,
// at least one. Throws Error(code) as "origin: reason".
std::map<std::string, std::string> parse_safetensors_index(std::string_view text, const std::string& origin,
                                                           ExitCode code);

// <folder>/model.safetensors, otherwise the shards in <folder>/model.safetensors.index.json, otherwise
// pytorch_model.bin or the shards of its index (state_dict_of: tensors are read, nothing is executed). Throws
// Error(code), one sentence: no weights in the folder, a missing shard, an index that disagrees with its shards, a file
// of another kind.
class SafetensorsSet {
 public:
  explicit SafetensorsSet(const std::filesystem::path& folder, ExitCode code = ExitCode::checkpoint);
  // Only one file: of torch.save if its name ends in .bin, otherwise safetensors.
  static SafetensorsSet of_file(const std::filesystem::path& file, ExitCode code = ExitCode::checkpoint);

  // Sorted.
  const std::vector<std::string>& names() const { return names_; }
  bool contains(const std::string& name) const { return where_.count(name) != 0; }
  // A view of the mapped file. Throws Error(code) naming the tensor and the folder.
  const ArrayView& at(const std::string& name) const;
  const std::string& origin() const { return origin_; }
  // XXH3-128, hex, of all tensors in the order of their names: name, dtype, shape and bytes, whichever files they stand
  // in. Reads them.
  std::string digest() const;

 private:
  struct File;
  SafetensorsSet(ExitCode code, std::string origin) : origin_(std::move(origin)), code_(code) {}
  void add(const std::filesystem::path& file);
  void add_shards(const std::filesystem::path& index);

  std::string origin_;
  ExitCode code_;
  std::vector<std::filesystem::path> paths_;
  std::vector<std::shared_ptr<const File>> files_;
  std::map<std::string, size_t> where_;  // which file
  std::vector<std::string> names_;
};

}  // namespace hrm
