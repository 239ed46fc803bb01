#pragma once
// Prefix sharing: the common prompt of several completions goes through the model once. Nothing is computed for
// padding, and only tokens with labels go through the head. Only attention sees the completions' rows, padded to one
// width. If the prompts' own responses go through the model in the same pass, the prompts are those of the responses'
// rows. Shapes: M micro-batches of B rows of T positions, of which N consecutive ones answer one prompt; W rows of S
// positions with responses, or none; C tokens.

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "hrm/nn/shared_tokens.h"
#include "hrm/ops/sum_rows.h"

namespace hrm::tasks {

// The tokens of one micro-batch, all views of one buffer. U = W S + C.
struct PrefixSharedTokens {
  at::Tensor ids;           // (1, C) int32, behind the responses' W S; what is not used is 0
  nn::SharedTokens tokens;  // where all of them stand
  ops::RowMap labelled;     // (U, D) -> (C, D): the hidden states that give a label, each to its own row
  at::Tensor labels;        // (1, C) int32, data::kIgnoreLabel where there is none
  ops::RowMap to_rows;      // (C, 1) -> (B T, 1): of what belongs to labels, to the place in a row; 0 elsewhere
};

class PrefixSharing {
 public:
  // Allocates for `micro_batches` of at most `rows` rows of `positions`, and at most `response_tokens` = W S: 48 bytes
  // for each of these positions and 12 for each of these tokens.
  PrefixSharing(int64_t micro_batches, int64_t rows, int64_t positions, int64_t response_tokens, at::Device device);

  // The content of the rows: ids and labels (M B, T) int64 on the CPU, where labels[r][t] is the target of ids[r][t]. A
  // row's tokens end at its last label, its prompt at its first; a row without labels is left out. N = `samples` rows
  // answer one prompt. responses: (M W, S) int64 on the CPU or undefined; the first B / N rows of a micro-batch begin
  // with its prompts, or share nothing. Returns the most tokens that a micro-batch needs; nothing is written yet.
  int64_t read(const at::Tensor& ids, const at::Tensor& labels, int64_t micro_batches, int64_t samples,
               const at::Tensor& responses = {});
  // Writes what was read for C = `capacity` tokens, at least what read() returned.
  void write(int64_t capacity);

  // The capacity for this many tokens, one of few for each width; 0 if rows without sharing cost hardly more.
  static int64_t capacity(int64_t tokens, int64_t rows, int64_t positions);

  PrefixSharedTokens part(int64_t micro_batch) const;
  at::Tensor buffer() const { return buffer_; }  // int32: the static address

 private:
  struct Layout;
  struct Group;
  class Writer;
  Layout layout() const;
  Group group(int64_t micro_batch, int64_t index) const;

  at::Tensor buffer_;
  at::Tensor ids_, labels_, responses_;  // of the last read(), on the CPU
  int64_t micro_batches_ = 0, rows_ = 0, positions_ = 0, samples_ = 0, response_rows_ = 0, capacity_ = 0;
};

}  // namespace hrm::tasks
