#pragma once
// Tells when a block's weights are about to be read, in the forward and in the backward pass, so that weights which
// live on other ranks can be fetched in time (parallel/weight_gather.h).

#include <ATen/core/Tensor.h>

#include <memory>

namespace hrm::nn {

// The blocks of a ParameterSet whose weights may be absent between uses, and their listener. A block calls before() at
// the start of each pass and returns its output through after(). Numbers are those of GradientReady::groups().
//
// Without a listener nothing is recorded. A part that a backward pass computes again (hrm/nn/recompute.h) lies between
// before() and after() of its block, so the backward pass is told once, before both the second forward pass and the
// gradients.
class BlockUse : public std::enable_shared_from_this<BlockUse> {
 public:
  // Called on the thread and stream of the pass. Exceptions propagate out of the pass.
  class Listener {
   public:
    virtual ~Listener() = default;
    virtual void before_forward(int block) = 0;
    virtual void before_backward(int block) = 0;
    // Before a decoding step, in which ranks do not meet.
    virtual void before_step(int block) = 0;
  };

  // Must outlive its passes, also backward ones; null: nobody.
  void listen(Listener* listener) { listener_ = listener; }

  void before(int block) const {
    if (listener_ != nullptr) listener_->before_forward(block);
  }
  // Returns `output`, or an alias by which the backward pass reports that it reaches the block.
  at::Tensor after(const at::Tensor& output, int block);
  void before_step(int block) const {
    if (listener_ != nullptr) listener_->before_step(block);
  }

 private:
  struct Mark;

  Listener* listener_ = nullptr;
};

// A block, also a HasGradientGroup, that reports every use of its weights.
class HasBlockUse {
 public:
  virtual ~HasBlockUse() = default;
  // Called by ParameterSet::build.
  virtual void set_block_use(std::shared_ptr<BlockUse> use, int block) = 0;
};

// A module that reads the weights of all its blocks at once, so that they must all be there. They do not report.
class ReadsBlocksTogether {
 public:
  virtual ~ReadsBlocksTogether() = default;
};

}  // namespace hrm::nn
