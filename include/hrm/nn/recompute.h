#pragma once
// Activation checkpointing: recomputes the intermediate values of a part of a model in the backward pass instead of
// saving them (Chen et al., arXiv 1604.06174).

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace hrm::nn {

// inputs -> outputs, all differentiable. It is called twice with equal inputs and must give equal results. Its uses of
// gradient groups count once, and the second call marks them (nn::GradientReady).
using RecomputedPart = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)>;

// Computes part(inputs) and saves only the inputs. The part's own backward pass accumulates the gradients of its
// parameters. `leaf`: any trained parameter of the part, so that the backward pass runs even if no input needs a
// gradient. Call in gradient mode; all inputs must be defined.
std::vector<at::Tensor> recompute(const RecomputedPart& part, const std::vector<at::Tensor>& inputs,
                                  const at::Tensor& leaf);

// Whether this thread is in the second call of a part, in a backward pass.
bool computes_again();

// While one lives, this thread computes what a part returns. In the second call nobody reads that: the call is for the
// graph, and for what the graph saves. So ops may leave such a result unset, as result_is_unread() tells them.
class PartResult {
 public:
  PartResult();
  ~PartResult();
  PartResult(const PartResult&) = delete;
  PartResult& operator=(const PartResult&) = delete;

 private:
  bool before_;
};
bool result_is_unread();

}  // namespace hrm::nn
