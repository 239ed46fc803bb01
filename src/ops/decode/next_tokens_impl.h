#pragma once
// What the files of next_tokens share: the input checks and the plain ATen reference.

#include "hrm/ops/next_tokens.h"

namespace hrm::ops {

constexpr int64_t kMostStopIds = 32;
constexpr int64_t kNoRow = -2;  // of a place without an active row

// Throw c10::Error with the op's name and the shapes.
void check_sample_tokens(const char* op, const at::Tensor& logits, const SamplingOptions& options);
void check_draws(const at::Tensor& logits, const SamplingOptions& options, const at::Tensor& draws);
void check_next_tokens(const at::Tensor& logits, const SamplingOptions& options, const WrittenRows& rows);

namespace reference {

at::Tensor filtered_probabilities(const at::Tensor& logits, const SamplingOptions& options);
at::Tensor sample_tokens(const at::Tensor& logits, const SamplingOptions& options, const at::Tensor& draws);
void next_tokens_(const at::Tensor& logits, const SamplingOptions& options, const WrittenRows& rows);

}  // namespace reference
}  // namespace hrm::ops
