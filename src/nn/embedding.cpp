#include "hrm/nn/embedding.h"

#include <ATen/ATen.h>

#include "hrm/base/error.h"
#include "hrm/ops/embed.h"
#include "hrm/ops/embed_tokens.h"

namespace hrm::nn {

Embedding::Embedding(int64_t entries, int64_t width, at::Device device, const std::string& name, const Cut& cut)
    : cut_{.by = CutBy::vocabulary, .cut = cut, .pieces = {entries}} {
  embedding_weight_ = register_parameter(name, at::empty({cut.range(entries).count, width}, at::device(device)));
}

std::vector<std::pair<at::Tensor, ParameterCut>> Embedding::cut_parameters() const {
  if (cut_.whole()) return {};
  return {{embedding_weight_, cut_}};
}

at::Tensor Embedding::forward(const at::Tensor& ids, at::ScalarType dtype) const {
  if (cut_.whole()) return look_up(ids, dtype);
  const auto [first, rows] = cut_.cut.range(cut_.pieces.front());
  // Rows of other parts are looked up as the first or the last one, whose gradient they leave alone: it is multiplied
  // by 0.
  const at::Tensor own = ids - first, row = own.clamp(0, rows - 1);
  return look_up(row, dtype) * row.eq(own).unsqueeze(-1);
}

bool Embedding::can_read_copy() const {
  return rounded_ && cut_.pieces.front() / cut_.cut.parts > ops::kOneHotEntries;
}

at::Tensor Embedding::look_up(const at::Tensor& ids, at::ScalarType dtype) const {
  // Frozen weights may already be in the compute dtype.
  if (embedding_weight_.scalar_type() != at::kFloat && !embedding_weight_.requires_grad()) {
    return at::embedding(embedding_weight_, ids).to(dtype);
  }
  if (copy_.defined()) {
    require(copy_.scalar_type() == dtype, ExitCode::unexpected, "an embedding's copy in ",
            c10::toString(copy_.scalar_type()), " is read in ", c10::toString(dtype));
    return ops::embed_tokens(ids, embedding_weight_, copy_);
  }
  if (embedding_weight_.size(0) > ops::kOneHotEntries) return ops::embed_tokens(ids, embedding_weight_, dtype);
  std::vector<int64_t> sizes = ids.sizes().vec();
  sizes.push_back(embedding_weight_.size(1));
  return ops::embed(ids.reshape({1, -1}), embedding_weight_, {}, /*prefix=*/0, /*scale=*/1, dtype).view(sizes);
}

}  // namespace hrm::nn
