#include "hrm/nn/gradient_ready.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function.h>

#include "hrm/nn/recompute.h"

namespace hrm::nn {

using torch::autograd::variable_list;

// An identity node that only reports when the backward pass reaches it.
struct GradientReady::Mark : torch::autograd::Node {
  Mark(torch::autograd::edge_list edges, std::shared_ptr<GradientReady> ready, int group)
      : Node(std::move(edges)), ready_(std::move(ready)), group_(group) {}

  variable_list apply(variable_list&& grads) override {
    ready_->use_is_done(group_);
    return std::move(grads);
  }
  std::string name() const override { return "GradientMark"; }

  std::shared_ptr<GradientReady> ready_;
  int group_;
};

GradientReady::GradientReady(std::vector<std::string> groups) : groups_(std::move(groups)), uses_(groups_.size()) {}

void GradientReady::listen(Listener listener, Listener used_again) {
  listener_ = std::move(listener);
  used_again_ = std::move(used_again);
  uses_.assign(groups_.size(), 0);
}

at::Tensor GradientReady::mark(const at::Tensor& input, int group, bool repeats) {
  if (!listener_ || !at::GradMode::is_enabled()) return input;
  // A part that a backward pass computes again was counted in the forward pass.
  if (!computes_again() && ++uses_[static_cast<size_t>(group)] == 2 && used_again_ && !repeats) used_again_(group);
  if (!input.requires_grad()) return input;
  // detach() shares memory and version counter, so saved tensors still detect in-place changes.
  at::Tensor output = input.detach();
  const std::shared_ptr<Mark> node(new Mark(torch::autograd::collect_next_edges(input), shared_from_this(), group),
                                   torch::autograd::deleteNode);
  torch::autograd::create_gradient_edge(output, node);
  return output;
}

void GradientReady::use_is_done(int group) {
  int& uses = uses_[static_cast<size_t>(group)];
  if (uses > 0 && --uses == 0 && listener_) listener_(group);
}

}  // namespace hrm::nn
