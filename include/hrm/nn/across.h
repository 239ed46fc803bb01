#pragma once
// What stands between layers that are cut into parts. The layers know no ranks: hrm/parallel/tensor_across.h moves the
// data. A null pointer to it means that the layers are whole.
//
// Between layers each part has its own rows of the residual stream (sequence parallelism; Korthikanti et al., arXiv
// 2205.05198). The n tokens of a pass are flattened, and part r has the tokens r k to (r + 1) k, k = ceil(n / parts).
// The last parts may have fewer tokens; zeros follow them.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "hrm/nn/cut.h"
#include "hrm/ops/add_rms_norm.h"

namespace hrm::nn {

// Rows on their way between parts.
class Moving {
 public:
  virtual ~Moving() = default;
  // Once. On a GPU makes the current stream wait, not the host.
  virtual void wait() = 0;
};

// All parts call the same methods in the same order, forward and backward. Deterministic.
class TensorAcross {
 public:
  virtual ~TensorAcross() = default;
  virtual Cut cut() const = 0;

  // Rows of this part, (k, D) -> the rows of all, (tokens, D). The gradient of the part's rows is the sum over the
  // parts of their gradients, added in float32 in the order of parts and rounded once.
  virtual at::Tensor enter(const at::Tensor& rows, int64_t tokens) const = 0;
  // This part's partial sums of all rows, (tokens, D) -> every part's partial sums of our rows, (parts, k, D). For
  // ops::add_pieces() alone: all pieces must get the same gradient.
  virtual ops::Pieces leave(const at::Tensor& sums) const = 0;
  // As enter(), where what follows is computed alike by every part: the gradient of the part's rows is that which it
  // gets itself.
  virtual at::Tensor enter_whole(const at::Tensor& rows, int64_t tokens) const = 0;
  // x, which all parts hold alike and of which each then computes other heads. Its gradient is the sum over the parts.
  virtual at::Tensor share(const at::Tensor& x) const = 0;
  // What every part has, (parts, ...) for a tensor (...) of the same shape on each. No gradient.
  virtual at::Tensor gather(const at::Tensor& own) const = 0;

  // A decoding step, without gradient: residual + every part's sums, (n, D), in float32 in the order of parts, rounded
  // once; the same bits on every part. next_norm: as in ops::add_pieces_ahead(), or undefined.
  virtual ops::DecodedAhead add_sums(const at::Tensor& residual, const at::Tensor& sums,
                                     const at::Tensor& next_norm) const {
    return ops::add_pieces_ahead(residual, {gather(sums)}, next_norm);
  }

  // For hand-written passes (hrm/nn/across_linear.h), without gradient; tensors must live until wait(), and neither be
  // read nor written but for what is said. `all`, (parts k, D), gets the rows of all parts; `rows`, (k, D), may be
  // read.
  virtual std::unique_ptr<Moving> start_gather(const at::Tensor& all, const at::Tensor& rows) const = 0;
  // Both (parts, k, D). Sends sums[p] to part p, and pieces[p] gets what part p sends. Their own places do not move;
  // they may be read and written.
  virtual std::unique_ptr<Moving> start_exchange(const at::Tensor& pieces, const at::Tensor& sums) const = 0;

  // x, which all parts hold alike, as this part's partial sums: x on the first part, zeros on the others. After
  // leave(), every part gets the gradient of the whole.
  at::Tensor as_sums(const at::Tensor& x) const;

  // Rows of each part: k.
  int64_t own_rows(int64_t tokens) const { return (tokens + cut().parts - 1) / cut().parts; }
};

}  // namespace hrm::nn
