#pragma once
// What generation keeps of the rows that a model is writing: places 0..B-1, each for one row. Shapes: P prompts, n
// rows, T tokens, D width.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "hrm/models/language_model.h"

namespace hrm::tasks {

struct PromptBatch {
  models::LanguageInputs inputs;  // ids (P, T): the beginnings of the rows, padded at their ends
  at::Tensor lengths;             // (P) int64, tokens of each
};

class DecodeRows {
 public:
  virtual ~DecodeRows() = default;

  // Rows at `places` (n) int64 begin, row i with prompt of[i] (n) int64. Returns the hidden states (n, D) at their
  // ends.
  virtual at::Tensor begin(const PromptBatch& prompts, const at::Tensor& places, const at::Tensor& of) = 0;
  // What a step covers when no row has more than `tokens` tokens after it: part of its shape.
  virtual int64_t span(int64_t tokens) const = 0;
  // One more token for each of the first rows: ids (n) int64 -> hidden states (n, D).
  virtual at::Tensor step(const at::Tensor& ids, int64_t span) = 0;
  // Rows that are not `active` (n) bool, of the first n places, become empty.
  virtual void settle(const at::Tensor& active) = 0;
  // The rows at `places` (n) int64 become the first n.
  virtual void keep(const at::Tensor& places) = 0;
  // Whether a step is the same work each time.
  virtual bool capturable() const = 0;
};

// By the model's cache. tokens: the most that a row will hold.
std::unique_ptr<DecodeRows> make_cached_rows(models::LanguageModel& model, int64_t rows, int64_t tokens);
// By a pass over the whole row for each token. prompt: the most tokens of a prompt that the model reads apart.
std::unique_ptr<DecodeRows> make_whole_rows(models::LanguageModel& model, int64_t rows, int64_t tokens, int64_t prompt,
                                            at::Device device);

}  // namespace hrm::tasks
