#include "hrm/nn/block_use.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function.h>

#include <utility>

namespace hrm::nn {

using torch::autograd::variable_list;

// An identity node behind a block: the first of the block that a backward pass reaches.
struct BlockUse::Mark : torch::autograd::Node {
  Mark(torch::autograd::edge_list edges, std::shared_ptr<BlockUse> of, int number)
      : Node(std::move(edges)), use(std::move(of)), block(number) {}

  variable_list apply(variable_list&& grads) override {
    if (use->listener_ != nullptr) use->listener_->before_backward(block);
    return std::move(grads);
  }
  std::string name() const override { return "BlockMark"; }

  std::shared_ptr<BlockUse> use;
  int block;
};

at::Tensor BlockUse::after(const at::Tensor& output, int block) {
  if (listener_ == nullptr || !at::GradMode::is_enabled() || !output.requires_grad()) return output;
  // detach() shares memory and version counter, so saved tensors still detect in-place changes.
  at::Tensor alias = output.detach();
  const std::shared_ptr<Mark> node(new Mark(torch::autograd::collect_next_edges(output), shared_from_this(), block),
                                   torch::autograd::deleteNode);
  torch::autograd::create_gradient_edge(alias, node);
  return alias;
}

}  // namespace hrm::nn
