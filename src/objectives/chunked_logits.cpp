#include "objectives/chunked_logits.h"

#include "hrm/ops/linear.h"
#include "hrm/ops/linear_weight_gradient.h"
#include "hrm/ops/softmax_loss.h"
#include "ops/common/accumulate_type.h"

namespace hrm::objectives {
namespace {

// Pads rows of logits to a multiple of 128 bytes, so that GEMMs use aligned vector loads for any vocabulary size.
constexpr int64_t kPitch = 64;

// Rows whose float32 probabilities exist at once: 155 MB for a vocabulary of 152,000.
constexpr int64_t kEntropyRows = 256;

at::Tensor entropy_of(const at::Tensor& logits, at::ScalarType type) {
  const at::Tensor entropy = at::empty({logits.size(0)}, logits.options().dtype(type));
  for (int64_t first = 0; first < logits.size(0); first += kEntropyRows) {
    const int64_t count = std::min(kEntropyRows, logits.size(0) - first);
    at::Tensor log_p = at::log_softmax(logits.narrow(0, first, count), -1, type);
    entropy.narrow(0, first, count).copy_(log_p.mul_(log_p.exp()).sum(-1).neg_());
  }
  return entropy;
}

}  // namespace

at::Tensor head_loss_(const nn::LmHead& head, const at::Tensor& logits, const at::Tensor& labels,
                      const std::optional<at::Tensor>& weights, at::Tensor* entropy) {
  const nn::TensorAcross* const across = head.across();
  if (across == nullptr) {
    if (entropy != nullptr) *entropy = entropy_of(logits, ops::accumulate_type(logits));
    return ops::softmax_loss_(logits, labels, weights);
  }
  const at::Tensor facts =
      across->gather(ops::softmax_loss_facts(logits, labels, head.first(), /*with_mean=*/entropy != nullptr));
  if (entropy != nullptr) *entropy = ops::softmax_entropy(facts);
  return ops::softmax_loss_part_(logits, labels, head.first(), facts, weights);
}

void check_head_input(const char* name, const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& ids,
                      int64_t chunk, double temperature) {
  TORCH_CHECK(hidden.dim() == 2 && hidden.size(1) == weight.size(1) && hidden.scalar_type() == weight.scalar_type(),
              name, ": hidden (N, D) and the head's weight (V, D) must have one D and one dtype, got ", hidden.sizes(),
              " ", hidden.scalar_type(), " and ", weight.sizes(), " ", weight.scalar_type());
  TORCH_CHECK(ids.dim() == 1 && ids.size(0) == hidden.size(0), name,
              ": there must be one id for each hidden state, got ", ids.sizes(), " for ", hidden.sizes());
  TORCH_CHECK(chunk > 0, name, ": chunk must be positive, got ", chunk);
  TORCH_CHECK(temperature > 0, name, ": temperature must be positive, got ", temperature);
}

ChunkedLogits::ChunkedLogits(const at::Tensor& hidden, const at::Tensor& weight, int64_t chunk, double temperature)
    : hidden_(hidden), weight_(weight), chunk_(chunk), temperature_(temperature) {
  const int64_t rows = std::min(chunk, hidden.size(0));
  buffer_ = at::empty({rows, (weight.size(0) + kPitch - 1) / kPitch * kPitch}, hidden.options());
}

at::Tensor ChunkedLogits::make(int64_t first, int64_t count) const {
  const at::Tensor logits = buffer_.narrow(0, 0, count).narrow(1, 0, weight_.size(0));
  const at::Tensor hidden = hidden_.narrow(0, first, count);
  if (temperature_ == 1) {
    ops::linear_out(logits, hidden, weight_);
  } else {
    // The GEMM applies the factor before rounding. With beta 0 it does not read the buffer.
    logits.addmm_(hidden, weight_.t(), /*beta=*/0, /*alpha=*/1 / temperature_);
  }
  return logits;
}

HeadGradients::HeadGradients(const at::Tensor& hidden, const at::Tensor& weight, bool of_hidden, bool of_weight)
    : hidden_(hidden), weight_(weight) {
  if (of_hidden) of_hidden_ = at::empty_like(hidden, at::MemoryFormat::Contiguous);
  if (of_weight) {
    const auto options = weight.options().dtype(ops::accumulate_type(hidden));
    of_weight_ = hidden.size(0) > 0 ? at::empty(weight.sizes(), options) : at::zeros(weight.sizes(), options);
  }
}

void HeadGradients::add(int64_t first, const at::Tensor& grad_logits) {
  const int64_t count = grad_logits.size(0);
  if (of_hidden_.defined()) ops::linear_out(of_hidden_.narrow(0, first, count), grad_logits, weight_.t());
  if (of_weight_.defined()) {
    const auto put = first == 0 ? &ops::linear_weight_gradient_ : &ops::linear_accumulate_;
    put(of_weight_, grad_logits, hidden_.narrow(0, first, count));
  }
}

at::Tensor largest_weight(const at::Tensor& weights) {
  return weights.numel() > 0 ? weights.abs().max() : weights.sum();
}

at::Tensor relative_weights(const at::Tensor& weights, const at::Tensor& largest, at::ScalarType type) {
  return (weights / largest.clamp_min(1e-30)).to(type);
}

}  // namespace hrm::objectives
