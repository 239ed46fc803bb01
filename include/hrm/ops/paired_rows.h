#pragma once
// What a kernel of a decoding step writes beside its result for a product with a weight in e4m3.

#include <ATen/core/Tensor.h>

#include <utility>

namespace hrm::ops {

// Rows (..., D), and the same as pairs of e4m3 numbers, from which tensor cores compute products with weights in e4m3
// as they are stored. pairs: uint8, laid out as src/ops/linear/cuda/e4m3_pairs.h says; undefined if no kernel made it.
struct PairedRows {
  PairedRows(at::Tensor x, at::Tensor x_pairs = {})  // NOLINT(google-explicit-constructor)
      : rows(std::move(x)), pairs(std::move(x_pairs)) {}

  at::Tensor rows, pairs;
};

}  // namespace hrm::ops
