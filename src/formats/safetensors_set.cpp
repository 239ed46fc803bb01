#include "hrm/formats/safetensors_set.h"

#include <nlohmann/json.hpp>
#include <set>

#include "hrm/base/file.h"
#include "hrm/base/hash.h"
#include "hrm/base/text.h"
#include "hrm/formats/json.h"

namespace hrm {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kWhole = "model.safetensors";
constexpr size_t kIndexBytes = size_t{64} << 20;
constexpr const char* kIndex = "model.safetensors.index.json";

}  // namespace

std::map<std::string, std::string> parse_safetensors_index(std::string_view text, const std::string& origin,
                                                           ExitCode code) {
  const json index = parse_json(text, origin, code, {.bytes = kIndexBytes});
  require(index.is_object() && index.contains("weight_map") && index["weight_map"].is_object(), code, origin,
          ": 'weight_map' is missing, or no object");
  std::map<std::string, std::string> map;
  for (const auto& item : index["weight_map"].items()) {
    require(item.value().is_string() && is_plain_file_name(item.value().get<std::string>()), code, origin,
            ": the tensor '", printable_start(item.key()), "' is in no file of this folder");
    map[item.key()] = item.value().get<std::string>();
  }
  require(!map.empty(), code, origin, ": lists no tensor");
  return map;
}

SafetensorsSet::SafetensorsSet(const fs::path& folder, ExitCode code) : origin_(folder.string()), code_(code) {
  std::error_code ignored;
  const fs::path index = folder / kIndex;
  // One file goes before shards, as with transformers: an index beside it is left over.
  if (fs::exists(folder / kWhole, ignored)) {
    add(folder / kWhole);
    return;
  }
  require(fs::exists(index, ignored), code, "'", origin_, "' holds no weights: neither ", kWhole, " nor ", kIndex,
          " is there");
  const std::map<std::string, std::string> map =
      parse_safetensors_index(read_text(index, code, kIndexBytes), index.string(), code);
  std::set<std::string> shards;
  for (const auto& [name, shard] : map) shards.insert(shard);
  for (const std::string& shard : shards) {
    require(fs::exists(folder / shard, ignored), code, "'", origin_, "' lacks the shard ", shard, " that ", kIndex,
            " lists; copy it there");
    add(folder / shard);
  }
  for (const auto& [name, shard] : map) {
    const auto found = where_.find(name);
    require(found != where_.end() && paths_[found->second].filename() == shard, code, index.string(), ": the tensor '",
            printable_start(name), "' is not in ", shard);
  }
  for (const std::string& name : names_) {
    require(map.count(name) != 0, code, index.string(), ": does not list the tensor '", printable_start(name), "' of ",
            paths_[where_.at(name)].filename().string());
  }
}

void SafetensorsSet::add(const fs::path& path) {
  paths_.push_back(path);
  files_.emplace_back(path, code_);
  for (const std::string& name : files_.back().names()) {
    const auto [first, is_new] = where_.emplace(name, files_.size() - 1);
    require(is_new, code_, "'", origin_, "' holds the tensor '", printable_start(name), "' twice, in ",
            paths_[first->second].filename().string(), " and in ", path.filename().string());
  }
  names_.clear();
  for (const auto& [name, file] : where_) names_.push_back(name);
}

const ArrayView& SafetensorsSet::at(const std::string& name) const {
  const auto found = where_.find(name);
  if (found == where_.end()) {
    const std::string near = nearest_name(name, names_);
    fail(code_, "'", origin_, "' holds no tensor '", printable_start(name), "'",
         near.empty() ? "" : cat("; did you mean '", printable_start(near), "'?"));
  }
  return files_[found->second].at(name);
}

std::string SafetensorsSet::digest() const {
  Hasher hasher;
  for (const std::string& tensor : names_) {
    const ArrayView& view = at(tensor);
    std::string head = cat(tensor.size(), " ", tensor, " ", name(view.dtype));
    for (const int64_t size : view.shape) head += cat(" ", size);
    hasher.update(head + "\n");
    hasher.update(view.bytes);
  }
  return hasher.hex();
}

}  // namespace hrm
