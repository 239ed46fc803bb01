#include "hrm/nn/lm_head.h"

#include <ATen/ATen.h>

#include "hrm/base/error.h"
#include "hrm/ops/linear.h"

namespace hrm::nn {

LmHead::LmHead(int64_t width, int64_t vocabulary, at::Device device, std::shared_ptr<const TensorAcross> across)
    : across_(std::move(across)) {
  const int64_t rows = across_ ? across_->cut().share(vocabulary, "tokens of a vocabulary") : vocabulary;
  weight_ = register_parameter("weight", at::empty({rows, width}, at::device(device)));
  compute_weight_ = weight_;
}

LmHead::LmHead(const at::Tensor& embedding, std::shared_ptr<const TensorAcross> across)
    : across_(std::move(across)), weight_(embedding), compute_weight_(embedding) {}

std::vector<std::pair<at::Tensor, ParameterCut>> LmHead::cut_parameters() const {
  if (!across_) return {};
  const Cut cut = across_->cut();
  return {{weight_, {.by = CutBy::vocabulary, .cut = cut, .pieces = {weight_.size(0) * cut.parts}}}};
}

at::Tensor LmHead::forward(const at::Tensor& hidden) const {
  if (!across_) return ops::linear(hidden, compute_weight_, weight_);
  require(!at::GradMode::is_enabled(), ExitCode::unexpected,
          "a head that is cut by its vocabulary has no logits with a gradient; use a chunked loss");
  const at::Tensor logits = across_->gather(ops::linear(hidden, compute_weight_, weight_));
  return logits.movedim(0, -2).flatten(-2);
}

}  // namespace hrm::nn
