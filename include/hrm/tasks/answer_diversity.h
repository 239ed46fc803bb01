#pragma once
// How different the answers to one prompt are, by the metric that a configuration names.

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "hrm/config/config.h"
#include "hrm/objectives/diversity.h"

namespace hrm::tasks {

struct AnswerEncoder;

// semantic: embeddings of a sentence encoder (models/bert_encoder.h) and ops::semantic_diversity; bleu, distinct: words
// (data/text_metrics.h).
class AnswerDiversity {
 public:
  // Opens the encoder's folder where the metric needs one; Error(data), Error(checkpoint) or Error(usage) for what is
  // wrong with it.
  AnswerDiversity(const config::PolychromicConfig& config, at::Device device, at::ScalarType dtype);
  ~AnswerDiversity();

  // texts: `groups` groups of n completions, those of a group together. Returns float32 on the device. Waits only for
  // the inputs of word metrics.
  objectives::GroupDiversity measure(const std::vector<std::string>& texts, int64_t n);

  // Milliseconds of the last measure(): in the encoder with its tokenizer, and in the metric. On a GPU the device's
  // work is waited for in between, which the caller does anyway, as advantages are made from the result.
  double encode_ms() const { return encode_ms_; }
  double metric_ms() const { return metric_ms_; }
  // Tokens that the encoder read in the last measure(), padding not counted.
  int64_t encoded_tokens() const { return encoded_tokens_; }
  // Unit vectors of the last measure(), (texts, d); undefined for the words' metrics.
  const at::Tensor& embeddings() const { return embeddings_; }
  // The encoder's vectors of other texts, e.g. of prompts; undefined for the words' metrics.
  at::Tensor embed(const std::vector<std::string>& texts);

  std::string describe() const;  // "semantic diversity by all-MiniLM-L6-v2 (6 layers, width 384)"

 private:
  config::DiversityMetric metric_;
  at::Device device_;
  std::unique_ptr<AnswerEncoder> encoder_;
  at::Tensor embeddings_;
  double encode_ms_ = 0, metric_ms_ = 0;
  int64_t encoded_tokens_ = 0;
};

}  // namespace hrm::tasks
