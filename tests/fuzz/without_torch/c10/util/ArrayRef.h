#pragma once
// Stands in for torch's header, of which state/part.h needs a view of numbers: the fuzz targets are built without
// torch.

#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

namespace c10 {

class IntArrayRef : public std::span<const int64_t> {
 public:
  IntArrayRef(const std::vector<int64_t>& values) : std::span<const int64_t>(values) {}
  IntArrayRef(std::initializer_list<int64_t> values) : std::span<const int64_t>(values.begin(), values.size()) {}

  std::vector<int64_t> vec() const { return {begin(), end()}; }
};

}  // namespace c10
