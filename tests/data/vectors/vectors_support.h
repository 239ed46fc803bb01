#pragma once
// Folders of vectors for the tests of this folder.

#include <ATen/ATen.h>

#include <span>
#include <vector>

#include "data/data_support.h"
#include "hrm/data/vectors.h"
#include "hrm/formats/npy.h"

namespace hrm::data {

template <class T>
void write_array(const std::filesystem::path& path, DType dtype, const std::vector<int64_t>& shape,
                 const std::vector<T>& values) {
  std::filesystem::create_directories(path.parent_path());
  write_npy(path, dtype, shape, std::as_bytes(std::span(values)));
}

// `rows` rows of two features (row, row + 100) with labels row mod 3.
inline VectorDataset counted_vectors(int64_t rows) {
  const at::Tensor first = at::arange(rows, at::kFloat);
  return VectorDataset(at::stack({first, first + 100}, 1).contiguous(), at::arange(rows, at::kLong).remainder(3), {2},
                       "memory");
}

}  // namespace hrm::data
