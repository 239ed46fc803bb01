#pragma once
// Rows of tokens that begin alike: what they have in common goes through a model once. Shapes: B rows, T positions, U
// tokens.

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "hrm/ops/sum_rows.h"

namespace hrm::nn {

// Where each of U tokens is in B rows of T positions. A causal model computes the same for a token wherever only
// what follows differs, so that everything but attention can be done once for it: hidden states are (1, U, D), and only
// attention sees rows. Positions that no token has are padding behind a row's end.
struct SharedTokens {
  int64_t rows = 0, positions = 0;  // B, T
  // The first W S tokens are W rows of S positions as they are, some of which may are in the B rows, too.
  int64_t whole_rows = 0, whole_positions = 0;  // W, S
  ops::RowMap spread;                           // (U, C) -> (B T, C): each token's row to all of its places
  ops::RowMap collect;  // (B T, C) -> (U, C): all but the first W S tokens, from the first of their places

  struct Rows {
    at::Tensor whole;   // (W, S, C); undefined where W is 0
    at::Tensor others;  // (B, T, C)
  };

  bool defined() const { return spread.defined(); }
  int64_t longest() const { return positions > whole_positions ? positions : whole_positions; }
  Rows to_rows(const at::Tensor& x) const;       // of x (1, U, C), in memory of its own; 0 at padding
  at::Tensor to_tokens(const Rows& rows) const;  // (1, U, C), 0 where a token has no place
};

}  // namespace hrm::nn
