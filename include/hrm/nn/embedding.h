#pragma once
// Token embedding: looks up rows of an fp32 table and returns them in the compute dtype.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <string>
#include <utility>
#include <vector>

#include "hrm/nn/cut.h"

namespace hrm::nn {

// Parameter `name`: (entries, width) float32, uninitialised. The default name matches the official HRM code. A part of
// a table that is cut has the rows cut.range(entries).
class Embedding : public torch::nn::Module, public HasCutParameters {
 public:
  Embedding(int64_t entries, int64_t width, at::Device device, const std::string& name = "embedding_weight",
            const Cut& cut = {});

  // ids: any shape, int32 or int64, in 0..entries-1 (unchecked on a GPU). Returns ids.shape + (width) in `dtype`. The
  // table's gradient is always summed in float32 and in a deterministic order. Above ops::kOneHotEntries entries it is
  // accumulated in place in the table's gradient buffer, as in hrm/ops/linear.h. A part gives partial sums: zeros for
  // the ids of other parts.
  at::Tensor forward(const at::Tensor& ids, at::ScalarType dtype) const;

  // Of a model that reads the table only before all its blocks: a backward pass completes its gradient last.
  void set_before_blocks() { before_blocks_ = true; }
  bool before_blocks() const { return before_blocks_; }

  // Of a model that calls forward() with the compute dtype alone.
  void set_rounded() { rounded_ = true; }
  // Whether every part of the table can be read from a copy in the compute dtype, with the same results.
  bool can_read_copy() const;
  // From now on forward() reads this copy, of the table's sizes, and throws Error(unexpected) for another dtype.
  // Gradients go to the table as before. Called by ParameterSet::copy_embeddings.
  void read_copy(const at::Tensor& copy) { copy_ = copy; }

  const at::Tensor& weight() const { return embedding_weight_; }
  const ParameterCut& cut() const { return cut_; }
  std::vector<std::pair<at::Tensor, ParameterCut>> cut_parameters() const override;

 private:
  at::Tensor look_up(const at::Tensor& ids, at::ScalarType dtype) const;

  ParameterCut cut_;
  bool before_blocks_ = false, rounded_ = false;
  at::Tensor embedding_weight_, copy_;
};

}  // namespace hrm::nn
