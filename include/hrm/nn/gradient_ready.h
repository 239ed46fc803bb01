#pragma once
// Says in the middle of a backward pass that the gradients of some parameters are complete, so that they can travel to
// other ranks while the rest is computed. Hooks of autograd cannot say it: weight gradients are added to their buffers
// inside the nodes of the sub-blocks and never pass through the leaves.

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace hrm::nn {

// The groups of a ParameterSet and who wants to know of them. A module passes its input through mark() each time it is
// used; the backward pass reaches that place when all gradients of this use are added, and when it has come through all
// uses (a block of TRM has several in one graph) the group is complete.
//
// Without a listener nothing is recorded and nothing counted. No locks: the forward pass, then the backward pass, of
// one device, in which autograd runs one node at a time.
class GradientReady : public std::enable_shared_from_this<GradientReady> {
 public:
  static constexpr int kNoGroup = -1;
  // Called inside the backward pass, on its thread and stream, once for each group. What it throws leaves backward().
  using Listener = std::function<void(int group)>;

  explicit GradientReady(std::vector<std::string> groups);

  // Names of the modules, "H_level.layers.3", in the order in which a backward pass completes them.
  const std::vector<std::string>& groups() const { return groups_; }

  // For one forward pass and its backward pass, which must both come after this. Uses counted before are forgotten: a
  // pass that threw may have left some. Empty: nobody listens. `used_again` is called inside the forward pass, for a
  // group's second use; what it throws leaves mark().
  void listen(Listener listener, Listener used_again = {});

  // `input` itself, or where gradients are recorded and somebody listens an alias of it that tells autograd of this
  // use. A use whose input needs no gradient cannot be told of: the group is then not reported in this pass.
  at::Tensor mark(const at::Tensor& input, int group);

 private:
  struct Mark;
  void use_is_done(int group);

  std::vector<std::string> groups_;
  std::vector<int> uses_;  // of each group, that backward has still to come through
  Listener listener_, used_again_;
};

// A module whose parameters make a group. It must mark its input in every use of them.
class HasGradientGroup {
 public:
  virtual ~HasGradientGroup() = default;
  // Called by ParameterSet::build.
  virtual void set_gradient_group(std::shared_ptr<GradientReady> ready, int group) = 0;
};

}  // namespace hrm::nn
