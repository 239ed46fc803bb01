#pragma once
// Copies, sums and drops rows of a matrix. nn::SharedTokens uses it to spread rows that are stored once, to collect
// them and to differentiate both.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace hrm::ops {

// For each row of the result (R, C), the rows of x (M, C) that it sums; and the inverse. All tensors are int32,
// contiguous, and on x's device. Each side is either a table with a fixed number of entries per row (-1: none), or a
// list with the start of each row's entries. Entries are existing rows (unchecked on a GPU). k is an entry of r exactly
// as often as r is an entry of k.
struct RowMap {
  at::Tensor rows = {};        // (R, S), rows of x; or (E)
  at::Tensor back = {};        // (M, P), rows of the result; or (F)
  at::Tensor rows_begin = {};  // (R + 1) or undefined: r has rows[rows_begin[r]] to rows[rows_begin[r + 1] - 1]
  at::Tensor back_begin = {};  // (M + 1) or undefined

  RowMap reversed() const { return {back, rows, back_begin, rows_begin}; }
  bool defined() const { return rows.defined(); }
  int64_t count() const { return rows_begin.defined() ? rows_begin.size(0) - 1 : rows.size(0); }  // R
};

// y[r] = base[r] + sum of x[k] over the entries k of r, 0 if there is neither. x: (M, C). Returns (R, C) of x's dtype
// (float32, bfloat16, float16; float64 for tests). base: (b, C) for the first b <= R rows, or undefined. Sums in
// float32 in this order and rounds once, so a single row is copied bit by bit. Differentiable any number of times in x
// and base; x's gradient uses the inverse map. Keeps the map. Deterministic. Runs on the current stream; can be
// captured. Throws c10::Error that names the shapes.
at::Tensor sum_rows(const at::Tensor& x, const RowMap& map, const at::Tensor& base = {});

}  // namespace hrm::ops
