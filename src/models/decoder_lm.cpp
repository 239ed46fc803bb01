#include "hrm/models/decoder_lm.h"

#include "hrm/base/error.h"

namespace hrm::models {
namespace {

void check_inputs(const LanguageInputs& inputs) {
  require(!inputs.prompt_ids.defined() && !inputs.earlier_cycles, ExitCode::unexpected,
          "a plain decoder has no prompt input and no cycles; put the prompt before the response in the same row");
}

}  // namespace

DecoderLm::DecoderLm(const DecoderOptions& options, at::Device device) {
  model_ = register_module("model", std::make_shared<Decoder>(options, /*cross=*/false, device));
}

LanguageLimits DecoderLm::limits() const {
  return {.cached = true, .max_tokens = model_->positions()};
}

LanguageOutput DecoderLm::forward(const LanguageInputs& inputs) {
  check_inputs(inputs);
  LanguageOutput out;
  if (inputs.shared.defined()) {
    require(!inputs.documents.defined(), ExitCode::unexpected, "prefix sharing supports only one document per row");
    out.hidden = model_->forward(inputs.ids, compute_dtype(), inputs.shared);
  } else {
    out.hidden = model_->forward(inputs.ids, compute_dtype(), inputs.documents, /*prefix=*/{}, /*memory=*/{},
                                 inputs.most_documents);
  }
  out.auxiliary = nn::take_auxiliary_losses(*this);
  return out;
}

DecodeCache DecoderLm::make_cache(int64_t rows, int64_t capacity) const {
  return model_->make_cache(rows, capacity, compute_dtype());
}

at::Tensor DecoderLm::prefill(const LanguageInputs& inputs, const at::Tensor& lengths, DecodeCache& cache) {
  check_inputs(inputs);
  require(!inputs.documents.defined() && !inputs.shared.defined(), ExitCode::unexpected,
          "decoding supports only one document per row, without prefix sharing");
  return model_->prefill(inputs.ids, lengths, compute_dtype(), cache);
}

at::Tensor DecoderLm::step(const at::Tensor& ids, DecodeCache& cache) {
  return model_->step(ids, compute_dtype(), cache);
}

}  // namespace hrm::models
