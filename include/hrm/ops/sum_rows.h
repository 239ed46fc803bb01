#pragma once
// Rows of a matrix at other places: copied to several, summed from several, or left out. What stands once instead of
// several times (nn::SharedTokens) is spread, collected and differentiated by it.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace hrm::ops {

// Which rows of x (M, C) each row of the result (R, C) is the sum of, and the inverse. All int32, contiguous, on the
// device of x. Either side is a table with equally many entries per row, -1: none; or a list of any number per row,
// with the start of each row's entries. Entries are existing rows (unchecked on a GPU), and k is one of r exactly as
// often as r is one of k.
struct RowMap {
  at::Tensor rows = {};        // (R, S), of x; or (E)
  at::Tensor back = {};        // (M, P), of the result; or (F)
  at::Tensor rows_begin = {};  // (R + 1) or undefined: r has rows[rows_begin[r]] to rows[rows_begin[r + 1] - 1]
  at::Tensor back_begin = {};  // (M + 1) or undefined

  RowMap reversed() const { return {back, rows, back_begin, rows_begin}; }
  bool defined() const { return rows.defined(); }
  int64_t count() const { return rows_begin.defined() ? rows_begin.size(0) - 1 : rows.size(0); }  // R
};

// y[r] = base[r] + sum of x[k] over the k of r, 0 if there is neither: x (M, C) -> (R, C), of x's dtype (float32,
// bfloat16, float16; float64 for tests). base: (b, C) for the first b <= R rows, or undefined. Summed in float32 in
// this order and rounded once, so a single row is copied bit by bit. Differentiable any number of times in x and base:
// x's gradient uses the inverse map. Keeps the map. Deterministic; on the current stream; can be captured. Throws
// c10::Error that names the shapes.
at::Tensor sum_rows(const at::Tensor& x, const RowMap& map, const at::Tensor& base = {});

}  // namespace hrm::ops
