#include "hrm/formats/safetensors_set.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "hrm/base/file.h"
#include "hrm/base/hash.h"
#include "hrm/base/text.h"
#include "hrm/formats/file_kind.h"
#include "hrm/formats/json.h"
#include "hrm/formats/torch_pickle.h"

namespace hrm {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr size_t kIndexBytes = size_t{64} << 20;
// The one file, and the index of shards.
constexpr std::array<std::pair<const char*, const char*>, 2> kPlaces{{
    {"model.safetensors", "model.safetensors.index.json"},
    {"pytorch_model.bin", "pytorch_model.bin.index.json"},
}};

// What is in a folder instead of weights that can be read, with what to do. Empty: nothing that looks like
// weights.
std::string other_weights(const fs::path& folder) {
  constexpr std::array kSuffixes = {".safetensors", ".bin",        ".pt",   ".pth", ".ckpt", ".gguf", ".h5",
                                    ".msgpack",     ".incomplete", ".part", ".gz",  ".zst",  ".zip",  ".tar"};
  constexpr uintmax_t kLook = 512;
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string suffix = at->path().extension().string();
    if (std::find(kSuffixes.begin(), kSuffixes.end(), suffix) != kSuffixes.end() && at->is_regular_file(error)) {
      names.push_back(at->path().filename().string());
    }
  }
  if (names.empty()) return "";
  std::sort(names.begin(), names.end());
  const std::string& first = names.front();
  const std::string shown = cat("; it holds ", printable_start(first), names.size() > 1 ? " and others" : "");
  const std::string fetch = "'hf download NAME --local-dir FOLDER' fetches all files of a model";
  if (first.find("-of-") != std::string::npos) {
    const bool torch = first.ends_with(".bin");
    return cat(shown, ", but not the index that lists such shards, ", kPlaces[torch ? 1 : 0].second, "; ", fetch);
  }
  if (first.ends_with(".incomplete") || first.ends_with(".part")) {
    return cat(shown, ", which a download has left behind; start it again: ", fetch);
  }
  try {
    const MappedFile file(folder / first, ExitCode::checkpoint);
    const auto start = file.bytes().first(std::min<uintmax_t>(file.bytes().size(), kLook));
    const bool torch = as_text(start).starts_with("PK") && !first.ends_with(".zip");
    const std::string kind = torch ? "" : foreign_file(start, (folder / first).string());
    if (!kind.empty()) return cat(shown, ": ", kind);
  } catch (const Error&) {
    return shown;  // it cannot be read
  }
  if (first.starts_with("consolidated")) {
    return cat(shown, ", whose tensors have the names of the model's makers; ", fetch, ", in the form of transformers");
  }
  return cat(shown, "; if its tensors are called as transformers calls them, name it ",
             first.ends_with(".safetensors") ? kPlaces[0].first : kPlaces[1].first);
}

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

// One file, whichever form it has.
struct SafetensorsSet::File {
  File(const fs::path& path, ExitCode code) {
    if (path.extension() == ".bin") {
      torch.emplace(path, code);
      for (const NamedTensor& tensor : state_dict_of(*torch, path.string(), code)) {
        tensors.emplace(tensor.name, ArrayView{tensor.dtype, tensor.shape, tensor.bytes});
      }
    } else {
      safetensors.emplace(path, code);
      for (const std::string& name : safetensors->names()) tensors.emplace(name, safetensors->at(name));
    }
  }
  std::optional<SafetensorsFile> safetensors;
  std::optional<TorchArchive> torch;
  std::map<std::string, ArrayView> tensors;
};

SafetensorsSet::SafetensorsSet(const fs::path& folder, ExitCode code) : origin_(folder.string()), code_(code) {
  std::error_code ignored;
  // One file goes before shards, and safetensors before the older form, as with transformers: what is beside it is
  // left over.
  for (const auto& [whole, index] : kPlaces) {
    if (fs::exists(folder / whole, ignored)) {
      add(folder / whole);
      return;
    }
    if (fs::exists(folder / index, ignored)) {
      add_shards(folder / index);
      return;
    }
  }
  fail(code, "'", origin_, "' holds no weights: none of ", kPlaces[0].first, ", ", kPlaces[0].second, ", ",
       kPlaces[1].first, " and ", kPlaces[1].second, " is there", other_weights(folder));
}

SafetensorsSet SafetensorsSet::of_file(const fs::path& file, ExitCode code) {
  SafetensorsSet set(code, file.string());
  set.add(file);
  return set;
}

void SafetensorsSet::add_shards(const fs::path& index) {
  std::error_code ignored;
  const std::map<std::string, std::string> map =
      parse_safetensors_index(read_text(index, code_, kIndexBytes), index.string(), code_);
  std::set<std::string> shards;
  for (const auto& [name, shard] : map) shards.insert(shard);
  for (const std::string& shard : shards) {
    require(fs::exists(index.parent_path() / shard, ignored), code_, "'", origin_, "' lacks the shard ", shard,
            " that ", index.filename().string(), " lists; copy it there");
    add(index.parent_path() / shard);
  }
  for (const auto& [name, shard] : map) {
    const auto found = where_.find(name);
    require(found != where_.end() && paths_[found->second].filename() == shard, code_, index.string(), ": the tensor '",
            printable_start(name), "' is not in ", shard);
  }
  for (const std::string& name : names_) {
    require(map.count(name) != 0, code_, index.string(), ": does not list the tensor '", printable_start(name), "' of ",
            paths_[where_.at(name)].filename().string());
  }
}

void SafetensorsSet::add(const fs::path& path) {
  paths_.push_back(path);
  files_.push_back(std::make_shared<const File>(path, code_));
  for (const auto& [name, tensor] : files_.back()->tensors) {
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
  return files_[found->second]->tensors.at(name);
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
