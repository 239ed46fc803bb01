#pragma once
// Prefix sharing: the tokens that several rows have in common pass through the model once. Shapes: B rows, T positions,
// U tokens.

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "hrm/ops/sum_rows.h"

namespace hrm::nn {

// Maps U tokens to their places in B rows of T positions. A causal model computes the same values for a token in every
// row with the same prefix, so everything but attention runs once per token. Hidden states are (1, U, D); only
// attention sees rows. Positions without a token are padding at the end of a row.
struct SharedTokens {
  int64_t rows = 0, positions = 0;  // B, T
  // The first W S tokens are W complete rows of S positions; some of them may also occur in the B rows.
  int64_t whole_rows = 0, whole_positions = 0;  // W, S
  ops::RowMap spread;                           // (U, C) -> (B T, C): copies each token's row to all of its places
  ops::RowMap collect;  // (B T, C) -> (U, C): reads all but the first W S tokens from their first places

  struct Rows {
    at::Tensor whole;   // (W, S, C); undefined if W is 0
    at::Tensor others;  // (B, T, C)
  };

  bool defined() const { return spread.defined(); }
  int64_t longest() const { return positions > whole_positions ? positions : whole_positions; }
  Rows to_rows(const at::Tensor& x) const;       // x (1, U, C) -> newly allocated rows, 0 at padding
  at::Tensor to_tokens(const Rows& rows) const;  // (1, U, C), 0 for a token without a place
};

}  // namespace hrm::nn
