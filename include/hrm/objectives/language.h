#pragma once
// The loss of language models: cross-entropy of the labels. Models with a reasoning core add deep supervision of their
// cycles and a halting term.

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "hrm/models/language_model.h"

namespace hrm::objectives {

struct LanguageLossOptions {
  // Weight of the mean cross-entropy of the outputs of the cycles before the last.
  double deep_supervision = 0;
  // Weight of mean(gate) * mean over rows of (sum over cycles of halt - halting_target)^2. The gate gets no gradient
  // from it.
  double halting = 0;
  double halting_target = 1;
  int64_t chunk = 4096;  // number of tokens whose logits exist at once
};

// All 0-dim float32 on the model's device. Only `loss` is differentiable. The others are its terms without their
// weights.
struct LanguageLoss {
  at::Tensor loss;
  at::Tensor cross_entropy;     // of the last cycle's output, mean over labelled tokens
  at::Tensor deep_supervision;  // 0 without earlier cycles
  at::Tensor halting;           // 0 without halting probabilities
  at::Tensor auxiliary;         // sum of the layers' weighted losses
  at::Tensor labelled;          // number of tokens with a label
};

// loss = cross_entropy + options.deep_supervision * deep_supervision + options.halting * halting + auxiliary.
//
// `labels`: (B, T) int32 or int64, each data::kIgnoreLabel or the token that `output.hidden` at this position predicts
// (no shift is done here). `tokens`: 0-dim float32, the divisor of sums over tokens; undefined: the number of labelled
// tokens, at least 1.
//
// With several micro-batches or ranks, pass the total number of tokens, and as `share` this batch's fraction of the
// rows, which multiplies the other terms. The sum over micro-batches and ranks is then the loss of the whole batch. The
// halting and load-balance terms are exceptions, because they are products of per-batch means.
LanguageLoss language_loss(const models::LanguageModel& model, const models::LanguageOutput& output,
                           const at::Tensor& labels, const LanguageLossOptions& options, const at::Tensor& tokens = {},
                           double share = 1);

// Per-token scores without gradient. hidden (B, T, D), labels (B, T) as above.
struct TokenScores {
  at::Tensor cross_entropy;  // (B, T) float32, 0 without a label
  at::Tensor right;          // (B, T) bool: the most probable token is the label; true without a label
};
TokenScores token_scores(const models::LanguageModel& model, const at::Tensor& hidden, const at::Tensor& labels,
                         int64_t chunk);

}  // namespace hrm::objectives
