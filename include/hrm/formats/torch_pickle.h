#pragma once
// PyTorch's .pt files without PyTorch. The reader extracts tensors and containers from the pickle and executes no code.
// torch.load opens the written files with its default settings (weights_only=True).

#include <cstddef>
#include <deque>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/formats/dtype.h"
#include "hrm/formats/zip.h"

namespace hrm {

struct NamedTensor {
  std::string name;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;  // C order
};

using TorchScalar = std::variant<int64_t, double, bool, std::string>;

// Reads torch.save files (state dicts with _metadata, parameters, nested dict, OrderedDict, list, tuple, numbers,
// text), and TorchScript or C++ OutputArchive files (module objects).
//
// Each object is named by its path: keys, list indices and attribute names joined by '.', e.g.
// "_orig_mod.model.inner.H_init". Nothing is left out. Tensors are views of the mapped file, except strided ones, which
// are copied to C order.
//
// Limits, far above real files: 32 MiB of pickle, 2^21 values in it, 100,000 tensors of 64 dimensions, 64 nested
// containers. Names have at most 1,024 bytes, 64 MiB in all. Copies may have 16 MiB more than the file.
//
// Throws Error(code) for other files, damaged files (CRC-32, truncated, out of bounds), big-endian files and the old
// non-zip format. Anything in the pickle besides tensors and containers is an error that names it.
class TorchArchive {
 public:
  explicit TorchArchive(const std::filesystem::path& path, ExitCode code = ExitCode::checkpoint);
  // Reads memory that must outlive this object.
  static TorchArchive parse(std::span<const std::byte> bytes, const std::string& origin,
                            ExitCode code = ExitCode::checkpoint);

  // In the order of the file.
  const std::vector<NamedTensor>& tensors() const { return tensors_; }
  bool contains(const std::string& name) const { return index_.count(name) != 0; }
  // Throws Error(code) naming the tensor, the file and the closest name.
  const NamedTensor& at(const std::string& name) const;
  const std::map<std::string, TorchScalar>& scalars() const { return scalars_; }
  // Keys of the outermost dict whose values are containers, in file order.
  const std::vector<std::string>& containers() const { return containers_; }

 private:
  TorchArchive(std::string origin, ExitCode code) : origin_(std::move(origin)), code_(code) {}
  void read(std::span<const std::byte> bytes);

  std::string origin_;
  ExitCode code_;
  std::optional<MappedFile> file_;
  std::deque<std::vector<std::byte>> copies_;  // strided tensors in C order
  std::vector<NamedTensor> tensors_;
  std::map<std::string, size_t> index_;
  std::map<std::string, TorchScalar> scalars_;
  std::vector<std::string> containers_;
};

// Where a tensor's bytes are in a file.
struct TorchPlace {
  std::string name;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  uint64_t begin = 0;  // in the file
};

// The tensors of a file of `size` bytes as TorchArchive has them, of which only the directory and the pickle are read:
// CRC-32 of the storages is not checked. Strided tensors are an error.
std::vector<TorchPlace> torch_places(uint64_t size, const ReadBytes& read, const std::string& origin,
                                     ExitCode code = ExitCode::checkpoint);

// The tensors of a model, under their state dict names. Training programs often nest the state dict in a dict, as
// `model`, `module`, `model_state_dict`, `model_state` or `state_dict`. Then only that member's tensors are returned,
// without its name; otherwise all. The result is views of the archive, which must outlive them. Throws Error(code),
// naming `origin`, if several members could be the state dict.
std::vector<NamedTensor> state_dict_of(const TorchArchive& archive, const std::string& origin, ExitCode code);

// Builds a .pt file with an OrderedDict name -> tensor. `root` is the folder inside the archive. Equal inputs give
// equal bytes. Throws Error(unexpected) for a duplicate name or bytes that do not match the shape.
std::vector<std::byte> build_torch_state_dict(const std::vector<NamedTensor>& entries,
                                              const std::string& root = "archive");

}  // namespace hrm
