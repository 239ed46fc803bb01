#pragma once
// A file of a checkpoint whose tensors are read when they are asked for: a safetensors file of the state, or of what
// one rank holds of the weights or of the state, whose metadata say which boxes of the whole tensors it has; or
// model.pt.

#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "hrm/base/file.h"
#include "hrm/formats/manifest.h"
#include "hrm/formats/safetensors.h"
#include "hrm/state/registry.h"

namespace hrm::checkpoint {

// Which of the parts of a checkpoint: from 0 to parts - 1.
struct PartNumber {
  int64_t part = 0, parts = 1;
};

// A tensor for such a file. `read` is called once, when its turn has come.
struct FileEntry {
  std::string name;
  at::ScalarType type;
  std::vector<int64_t> sizes;  // here
  StatePart part;
  std::function<at::Tensor()> read;  // on any device
};

// Hands a file with these entries to `sink`, piece by piece, one tensor at a time on the host. Without a number the
// file is the only one of its kind, and all entries are whole.
void write_part_file(const std::vector<FileEntry>& entries, std::map<std::string, std::string> metadata,
                     const std::optional<PartNumber>& number,
                     const std::function<void(std::span<const std::byte>)>& sink);

// A tensor in such a file.
struct PartTensor {
  SafetensorsPlace place;
  StatePart part;
};

class PartFile {
 public:
  // Reads the header alone. Throws Error(checkpoint) for what is wrong with the file and Error(environment) where it
  // cannot be read just now; sentences name the file without its folder.
  PartFile(const std::filesystem::path& path, const FileFact& fact, const std::optional<PartNumber>& number);
  // Of model.pt, which holds whole tensors, the directory and the pickle. Throws likewise.
  static std::shared_ptr<PartFile> of_archive(const std::filesystem::path& path, const FileFact& fact);

  const std::string& name() const { return name_; }
  const std::vector<PartTensor>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  // Compares the digest of all bytes with that of the manifest; only the first call reads.
  void verify();
  void read(uint64_t offset, std::span<std::byte> into) const { file_.read(offset, into); }

 private:
  PartFile(const std::filesystem::path& path, const FileFact& fact);
  // Calls `read_header`; a file that is damaged is called so, whatever that finds.
  template <class ReadHeader>
  void open(const ReadHeader& read_header);

  std::string name_;
  FileFact fact_;
  FileReader file_;
  std::vector<PartTensor> tensors_;
  std::map<std::string, std::string> metadata_;
  bool verified_ = false;
};

}  // namespace hrm::checkpoint
