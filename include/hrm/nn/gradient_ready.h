#pragma once
// Reports during a backward pass which gradients are complete, so that their reduction over ranks can overlap with the
// rest of the pass. Autograd hooks cannot do this: weight gradients are accumulated into their buffers inside the nodes
// of the sub-blocks and never pass through the leaves.

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace hrm::nn {

// The gradient groups of a ParameterSet and their listener. A module passes its input through mark() on every use. The
// backward pass reaches the mark once all gradients of that use are accumulated. A group is complete once this has
// happened for all its uses; a TRM block has several in one graph.
//
// Without a listener nothing is recorded or counted. There are no locks: one device runs the forward pass and then the
// backward pass, in which autograd runs one node at a time.
class GradientReady : public std::enable_shared_from_this<GradientReady> {
 public:
  static constexpr int kNoGroup = -1;
  // Called in the backward pass, on its thread and stream, once per group. Exceptions propagate out of backward().
  using Listener = std::function<void(int group)>;

  explicit GradientReady(std::vector<std::string> groups);

  // Module names ("H_level.layers.3") in the order in which a backward pass completes them.
  const std::vector<std::string>& groups() const { return groups_; }

  // Sets the listener for one forward pass and its backward pass, both of which must follow this call. Resets the use
  // counts, which a pass that threw may have left behind. An empty listener disables reporting. `used_again` is called
  // in the forward pass on a group's second use; its exceptions propagate out of mark().
  void listen(Listener listener, Listener used_again = {});

  // Returns `input`, or an alias that records this use in autograd if gradients are recorded and there is a listener. A
  // use whose input needs no gradient cannot be tracked; the group is then not reported in this pass. A use inside a
  // recomputed part (hrm/nn/recompute.h) counts when the forward pass makes it, and the recomputation tracks it.
  // `repeats`: a second use is nothing to tell `used_again` of, since all uses lie behind those of the other groups.
  at::Tensor mark(const at::Tensor& input, int group, bool repeats = false);

 private:
  struct Mark;
  void use_is_done(int group);

  std::vector<std::string> groups_;
  std::vector<int> uses_;  // per group: uses that backward has not reached yet
  Listener listener_, used_again_;
};

// A module whose parameters form a group. It must mark its input on every use of them.
class HasGradientGroup {
 public:
  virtual ~HasGradientGroup() = default;
  // Whether it is one: it has trained parameters of its own. Asked by ParameterSet::build.
  virtual bool has_gradients() const { return true; }
  // Called by ParameterSet::build.
  virtual void set_gradient_group(std::shared_ptr<GradientReady> ready, int group) = 0;
};

}  // namespace hrm::nn
