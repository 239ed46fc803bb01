#pragma once
// The weights of a saved model, memory-mapped: one file of safetensors or torch.save, or several files with an index.

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "hrm/base/error.h"
#include "hrm/formats/safetensors.h"

namespace hrm {

// Parses model.safetensors.index.json or pytorch_model.bin.index.json: the shard of each tensor, a file in the same
// folder; at least one. Throws Error(code) as "origin: reason".
std::map<std::string, std::string> parse_safetensors_index(std::string_view text, const std::string& origin,
                                                           ExitCode code);

// Opens <folder>/model.safetensors, otherwise the shards in <folder>/model.safetensors.index.json, otherwise
// pytorch_model.bin or the shards of its index. torch.save files are read with state_dict_of; nothing is executed.
//
// Throws Error(code), one sentence, if the folder has no weights, a shard is missing, or a file is of another kind. An
// index that disagrees with its shards is also an error.
class SafetensorsSet {
 public:
  explicit SafetensorsSet(const std::filesystem::path& folder, ExitCode code = ExitCode::checkpoint);
  // A single file: torch.save if its name ends in .bin, otherwise safetensors.
  static SafetensorsSet of_file(const std::filesystem::path& file, ExitCode code = ExitCode::checkpoint);

  // Sorted.
  const std::vector<std::string>& names() const { return names_; }
  bool contains(const std::string& name) const { return where_.count(name) != 0; }
  // A view of the mapped file. Throws Error(code) naming the tensor and the folder.
  const ArrayView& at(const std::string& name) const;
  const std::string& origin() const { return origin_; }
  // XXH3-128, in hex, of all tensors sorted by name: name, dtype, shape and bytes. It does not depend on the sharding.
  // Reads all tensors.
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
  std::map<std::string, size_t> where_;  // index of the file
  std::vector<std::string> names_;
};

}  // namespace hrm
