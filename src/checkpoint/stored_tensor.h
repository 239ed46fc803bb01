#pragma once
// A tensor of a checkpoint, in the files that hold its parts.

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/part_file.h"
#include "hrm/state/registry.h"

namespace hrm::checkpoint {

class StoredTensor {
 public:
  // What a file holds; add() more until complete() has been called.
  StoredTensor(const std::string& name, std::shared_ptr<PartFile> file, const PartTensor& tensor);

  // Throws Error(checkpoint) for a piece of another type or of another whole.
  void add(const std::string& name, std::shared_ptr<PartFile> file, const PartTensor& tensor);
  // Checks that the pieces are the whole tensor, each element once. Otherwise throws Error(checkpoint), which names
  // the files.
  void complete(const std::string& name) const;

  at::ScalarType type() const { return type_; }
  const std::vector<int64_t>& sizes() const { return sizes_; }  // of the whole

  // Checks the digests of the files that read() will read.
  void verify(const StatePart& part, at::IntArrayRef here) const;
  // This part of the tensor, a CPU tensor of the sizes `here` in C order; not to be written to.
  at::Tensor read(const StatePart& part, at::IntArrayRef here) const;
  at::Tensor whole() const { return read({}, sizes_); }

 private:
  struct Piece {
    std::shared_ptr<PartFile> file;
    uint64_t begin = 0;  // in the file
    std::vector<int64_t> shape;
    StatePart part;
    std::vector<StateRun> runs() const;
  };
  // Calls with the bytes of the piece's file, those of the wanted tensor and the number of bytes.
  template <class Visit>
  void intersect(const Piece& piece, const std::vector<StateRun>& wanted, const Visit& visit) const;

  std::vector<Piece> pieces_;
  at::ScalarType type_;
  std::vector<int64_t> sizes_;
};

// The tensors of these files whose names begin with `prefix`, each checked to be complete. Throws Error(checkpoint).
std::map<std::string, StoredTensor> stored_tensors(const std::vector<std::shared_ptr<PartFile>>& files,
                                                   const std::string& prefix);

}  // namespace hrm::checkpoint
