#pragma once
// safetensors: 8 bytes of header length, a JSON header, raw tensors. https://github.com/huggingface/safetensors

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/formats/dtype.h"

namespace hrm {

struct SafetensorsEntry {
  std::string name;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;  // C order
};

// The length and the header, padded with spaces to a multiple of 8; the tensors' bytes follow in the given order. Equal
// inputs give equal bytes. Throws Error(unexpected) for a duplicate name or bytes that do not match the shape.
std::string safetensors_header(const std::vector<SafetensorsEntry>& entries,
                               const std::map<std::string, std::string>& metadata);

// Builds the whole file in memory.
std::vector<std::byte> build_safetensors(const std::vector<SafetensorsEntry>& entries,
                                         const std::map<std::string, std::string>& metadata);

// Writes and fsyncs the file without a second copy of the tensors. Throws Error(environment).
void write_safetensors(const std::filesystem::path& path, const std::vector<SafetensorsEntry>& entries,
                       const std::map<std::string, std::string>& metadata);

// Where a tensor's bytes are in a file: from `begin` to `end`, counted from the beginning of the file.
struct SafetensorsPlace {
  std::string name;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;
};

struct SafetensorsHeader {
  std::vector<SafetensorsPlace> tensors;  // in the order of the data
  std::map<std::string, std::string> metadata;
};

// Reads and checks the header alone, as SafetensorsFile does, of a file of `size` bytes. `read` copies bytes of the
// file, from an offset on. Throws Error(code), naming `origin`.
SafetensorsHeader read_safetensors_header(uint64_t size,
                                          const std::function<void(uint64_t offset, std::span<std::byte> into)>& read,
                                          const std::string& origin, ExitCode code = ExitCode::data);

// A safetensors file, checked when opened. Limits: a header of at most 16 MiB, 100,000 tensors of at most 64
// dimensions, names of at most 1,024 bytes. Types must be known and keys unique. Offsets must be inside the file, and
// each tensor must have the size of its shape. As the format demands, tensors have neither gaps nor overlaps.
class SafetensorsFile {
 public:
  // Memory-maps the file. Throws Error(code).
  explicit SafetensorsFile(const std::filesystem::path& path, ExitCode code = ExitCode::data);
  // Reads memory that must outlive this object. `origin` names the source in errors.
  static SafetensorsFile parse(std::span<const std::byte> bytes, const std::string& origin,
                               ExitCode code = ExitCode::data);

  // In the order of the data.
  const std::vector<std::string>& names() const { return names_; }
  bool contains(const std::string& name) const { return tensors_.count(name) != 0; }
  // Throws Error(code) naming the tensor, the file and the closest name.
  const ArrayView& at(const std::string& name) const;
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  SafetensorsFile(std::string origin, ExitCode code) : origin_(std::move(origin)), code_(code) {}
  void read(std::span<const std::byte> bytes);

  std::string origin_;
  ExitCode code_;
  std::optional<MappedFile> file_;
  std::vector<std::string> names_;
  std::map<std::string, ArrayView> tensors_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace hrm
