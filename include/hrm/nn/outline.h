#pragma once
// Weights that have a shape before they have values. A rank that keeps only a part of a model builds an outline of it,
// and then reads or draws its own part.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

#include "hrm/nn/cut.h"

namespace hrm::nn {

// While one with `on` exists, the weights of linear layers and heads that this thread builds are outlines.
class OutlineScope {
 public:
  explicit OutlineScope(bool on);
  ~OutlineScope();
  OutlineScope(const OutlineScope&) = delete;
  OutlineScope& operator=(const OutlineScope&) = delete;

  static bool active();

 private:
  bool before_;
};

// A tensor with a shape but one element of storage: NaN, or 0 for types that have none. Whoever reads its values is
// found out, and writing to it throws c10::Error.
at::Tensor outline(at::IntArrayRef sizes, const at::TensorOptions& options);
bool is_outline(const at::Tensor& tensor);

// An uninitialised weight; within an OutlineScope an outline.
at::Tensor make_weight(at::IntArrayRef sizes, const at::TensorOptions& options);

// Rows `first` to first + count of a weight: (count, columns), of any floating-point dtype, on any device.
using RowSource = std::function<at::Tensor(int64_t first, int64_t count)>;

// The rows of a part of a weight.
RowSource part_rows(RowSource whole, const ParameterCut& cut);

// Copies the elements `first` to first + out.numel() of a weight of `columns` columns, in C order, into `out` (n) of
// any dtype and device. Reads a few MiB of rows at a time; a GPU gets them in the order of its current stream.
void read_elements(const RowSource& rows, int64_t columns, int64_t first, const at::Tensor& out);

}  // namespace hrm::nn
