#pragma once
// Token embedding: rows of a fp32 table, handed out in the compute dtype.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <string>

namespace hrm::nn {

// Parameter `name` (entries, width) float32, uninitialised. The default name is that of the official HRM code.
class Embedding : public torch::nn::Module {
 public:
  Embedding(int64_t entries, int64_t width, at::Device device, const std::string& name = "embedding_weight");

  // ids: any shape, int32 or int64, every id in 0..entries-1 (unchecked on a GPU) -> ids.shape + (width), `dtype`.
  // The gradient of the table is summed in float32 whatever `dtype` is, in an order that does not vary from run to
  // run. Above ops::kOneHotEntries entries it is added to the table's own buffer, as hrm/ops/linear.h does.
  at::Tensor forward(const at::Tensor& ids, at::ScalarType dtype) const;

  const at::Tensor& weight() const { return embedding_weight_; }

 private:
  at::Tensor embedding_weight_;
};

}  // namespace hrm::nn
