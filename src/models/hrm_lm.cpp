#include "hrm/models/hrm_lm.h"

#include <ATen/ATen.h>

#include "hrm/base/error.h"
#include "hrm/ops/gates.h"

namespace hrm::models {
namespace {

// Mean over the tokens of each row, (B, S, D) -> (B, D). A row without tokens gives zeros.
at::Tensor masked_mean(const at::Tensor& h, const at::Tensor& mask) {
  if (!mask.defined()) return h.mean(1);
  const at::Tensor weight = mask.unsqueeze(-1).to(at::kFloat);
  const at::Tensor sum = (h.to(at::kFloat) * weight).sum(1);
  return (sum / weight.sum(1).clamp_min(1)).to(h.scalar_type());
}

}  // namespace

HrmLm::HrmLm(const HrmLmOptions& options, std::shared_ptr<PromptEncoder> enc, std::shared_ptr<HrmCore> core,
             std::shared_ptr<AnswerDecoder> dec, at::Device device)
    : options_(options) {
  require(options.bridge != Bridge::prefix || options.prefix_len > 0, ExitCode::usage,
          "the prefix bridge needs a prefix_len of at least 1, not ", options.prefix_len);
  const int64_t D = options.core.width, P = options.bridge == Bridge::prefix ? options.prefix_len : 1;
  // Registered in the order in which a backward pass completes them (nn::GradientReady::groups).
  dec_ = register_module("dec", std::move(dec));
  core_ = register_module("core", std::move(core));
  bridge_ = register_module("bridge", std::make_shared<nn::Linear>(D, D * P, device, /*bias=*/true));
  gate_ = register_module("gate", std::make_shared<nn::Linear>(D, 1, device, /*bias=*/true));
  prompt_ = register_module("prompt", std::make_shared<nn::Linear>(D, D, device, /*bias=*/true));
  enc_ = register_module("enc", std::move(enc));
}

at::Tensor HrmLm::bridge_memory(const at::Tensor& z) const {
  return bridge_->forward(z).unflatten(-1, {-1, options_.core.width});
}

HrmLmTrace HrmLm::reason(const LanguageInputs& inputs, at::Tensor& gate) {
  require(inputs.prompt_ids.defined() && !inputs.documents.defined() && !inputs.shared.defined(), ExitCode::unexpected,
          "an HRM-LM needs prompt_ids and supports only one document per row, without prefix sharing");
  const at::Tensor mask = inputs.prompt_mask.defined() ? inputs.prompt_mask.to(at::kBool) : at::Tensor();
  // A row of only padding (at the end of a short batch) attends to all of it, because a softmax over nothing is NaN.
  const at::Tensor attended =
      mask.defined() ? mask.logical_or(mask.any(1, /*keepdim=*/true).logical_not()) : at::Tensor();
  HrmLmTrace trace;
  trace.encoded = enc_->forward(inputs.prompt_ids, attended, compute_dtype());
  trace.cls = masked_mean(trace.encoded, mask);
  trace.prompt = prompt_->forward(trace.cls);
  trace.core = core_->forward(trace.prompt);
  const at::Tensor& z = trace.core.z.back();
  trace.bridge = bridge_memory(z);
  const ops::BridgeGate gated = ops::bridge_gate(z, gate_->weight(), gate_->bias(), trace.bridge, options_.gate_scale,
                                                 options_.gate_bias, inputs.gate_warmup);
  gate = gated.gate;
  trace.memory = gated.memory;
  return trace;
}

int64_t HrmLm::prefix() const {
  return dec_->bridge() == Bridge::prefix ? options_.prefix_len : 0;
}

LanguageLimits HrmLm::limits() const {
  return {.prompted = true,
          .cached = dec_->cached() != nullptr,
          .max_tokens = dec_->positions() - prefix(),
          .max_prompt = enc_->max_prompt()};
}

DecodeCache HrmLm::make_cache(int64_t rows, int64_t capacity) const {
  const Decoder* decoder = dec_->cached();
  if (decoder == nullptr) return LanguageModel::make_cache(rows, capacity);
  return decoder->make_cache(rows, capacity + prefix(), compute_dtype());
}

at::Tensor HrmLm::prefill(const LanguageInputs& inputs, const at::Tensor& lengths, DecodeCache& cache) {
  Decoder* decoder = dec_->cached();
  if (decoder == nullptr) return LanguageModel::prefill(inputs, lengths, cache);
  const at::NoGradGuard no_grad;
  at::Tensor gate;
  const at::Tensor memory = reason(inputs, gate).memory;
  const bool prefix = dec_->bridge() == Bridge::prefix;
  return decoder->prefill(inputs.ids, lengths, compute_dtype(), cache, prefix ? memory : at::Tensor(),
                          prefix ? at::Tensor() : memory);
}

at::Tensor HrmLm::step(const at::Tensor& ids, DecodeCache& cache) {
  Decoder* decoder = dec_->cached();
  return decoder == nullptr ? LanguageModel::step(ids, cache) : decoder->step(ids, compute_dtype(), cache);
}

LanguageOutput HrmLm::forward(const LanguageInputs& inputs) {
  LanguageOutput out;
  const HrmLmTrace trace = reason(inputs, out.gate);
  out.hidden = dec_->forward(inputs.ids, trace.memory);
  if (inputs.earlier_cycles) {
    for (size_t c = 0; c + 1 < trace.core.z.size(); ++c) {
      out.earlier_hidden.push_back(dec_->forward(inputs.ids, bridge_memory(trace.core.z[c])));
    }
  }
  out.halt = trace.core.halt;
  out.auxiliary = nn::take_auxiliary_losses(*this);
  return out;
}

}  // namespace hrm::models
