#pragma once
// The plain language model, only a causal decoder: the baseline of the HRM-LMs.

#include <memory>

#include "hrm/models/language_model.h"

namespace hrm::models {

// Submodule: model, a Decoder. A row may hold several documents.
class DecoderLm : public LanguageModel {
 public:
  DecoderLm(const DecoderOptions& options, at::Device device);

  LanguageLimits limits() const override;
  LanguageOutput forward(const LanguageInputs& inputs) override;
  const nn::LmHead& head() const override { return model_->head(); }
  DecodeCache make_cache(int64_t rows, int64_t capacity) const override;
  at::Tensor prefill(const LanguageInputs& inputs, const at::Tensor& lengths, DecodeCache& cache) override;
  at::Tensor step(const at::Tensor& ids, DecodeCache& cache) override;

 private:
  std::shared_ptr<Decoder> model_;
};

}  // namespace hrm::models
