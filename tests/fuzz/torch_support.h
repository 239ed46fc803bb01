#pragma once
// Of the targets that read .pt files.

#include <vector>

#include "fuzz/fuzz.h"
#include "hrm/base/file.h"
#include "hrm/formats/torch_pickle.h"

namespace hrm::fuzz {

// Uses all of an archive; where it has tensors, writes them as a state dict and reads that again.
inline void use(const TorchArchive& archive) {
  size_t sum = 0;
  for (const NamedTensor& tensor : archive.tensors()) {
    touch(tensor.bytes);
    touch(tensor.name);
    sum += tensor.bytes.size();
    check(array_bytes(tensor.dtype, tensor.shape) == static_cast<int64_t>(tensor.bytes.size()), "the shape fits");
    check(&archive.at(tensor.name) == &tensor, "each name leads to its tensor");
  }
  for (const auto& [name, value] : archive.scalars()) {
    touch(name);
    if (const std::string* text = std::get_if<std::string>(&value)) touch(*text);
  }
  // Many names of one large tensor would take their time.
  if (sum > (size_t{1} << 20)) return;
  const auto again = build_torch_state_dict(archive.tensors());
  const TorchArchive copy = TorchArchive::parse(again, "again.pt");
  check(copy.tensors().size() == archive.tensors().size() && copy.scalars().empty(), "as many tensors");
  for (size_t i = 0; i < copy.tensors().size(); ++i) {
    const NamedTensor &a = archive.tensors()[i], &b = copy.tensors()[i];
    check(a.name == b.name && a.dtype == b.dtype && a.shape == b.shape, "the same name, type and shape");
    check(as_text(a.bytes) == as_text(b.bytes), "the same bytes");
  }
}

}  // namespace hrm::fuzz
