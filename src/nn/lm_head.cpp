#include "hrm/nn/lm_head.h"

#include <ATen/ATen.h>

#include "hrm/base/error.h"
#include "hrm/ops/linear.h"

namespace hrm::nn {

LmHead::LmHead(int64_t width, int64_t vocabulary, at::Device device, std::shared_ptr<const TensorAcross> across)
    : across_(std::move(across)), vocabulary_(vocabulary) {
  const int64_t rows = across_ ? across_->cut().range(vocabulary).count : vocabulary;
  weight_ = register_parameter("weight", make_weight({rows, width}, at::device(device)));
  compute_weight_ = weight_;
}

LmHead::LmHead(const at::Tensor& embedding) : LmHead(embedding, embedding.size(0), nullptr) {}

LmHead::LmHead(const at::Tensor& embedding, int64_t vocabulary, std::shared_ptr<const TensorAcross> across)
    : across_(std::move(across)), vocabulary_(vocabulary), weight_(embedding), compute_weight_(embedding) {}

std::vector<std::pair<at::Tensor, ParameterCut>> LmHead::cut_parameters() const {
  if (!across_) return {};
  return {{weight_, {.by = CutBy::vocabulary, .cut = across_->cut(), .pieces = {vocabulary_}}}};
}

at::Tensor LmHead::forward(const at::Tensor& hidden) const {
  if (!across_) return ops::linear(mark(hidden), compute_weight_, weight_);
  require(!at::GradMode::is_enabled(), ExitCode::unexpected,
          "a head that is cut by its vocabulary has no logits with a gradient; use a chunked loss");
  // The last part may have fewer than the others.
  const int64_t most = Cut{.parts = across_->cut().parts}.range(vocabulary_).count;
  const at::Tensor own = ops::linear(hidden, compute_weight_, weight_);
  const bool full = own.size(-1) == most;
  const at::Tensor logits = across_->gather(full ? own : at::constant_pad_nd(own, {0, most - own.size(-1)}));
  return logits.movedim(0, -2).flatten(-2).narrow(-1, 0, vocabulary_);
}

}  // namespace hrm::nn
