#pragma once
// Trainable parameters: fp32 master weights, their low-precision copies for the matrix products, and fp32 gradient
// buffers that live as long as the parameters.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <vector>

#include "hrm/nn/gradient_ready.h"

namespace hrm::nn {

// A module whose weight is read by matrix products. ParameterSet::build hands it the copy to read; until then, and when
// computing in float32, the copy is the master itself.
class HasComputeWeight {
 public:
  virtual ~HasComputeWeight() = default;
  // The float32 leaf, a parameter of this module.
  virtual at::Tensor master_weight() const = 0;
  // Called by ParameterSet::build. Same shape as the master, compute dtype, no gradient; its content changes in place.
  virtual void set_compute_weight(const at::Tensor& weight) = 0;
};

// A gradient that its module's backward pass can overwrite instead of adding to it, so nobody needs to clear it
// before.
struct StaleGradient {
  at::Tensor master;
  at::Tensor
      stale;  // 0-dim bool on the CPU: the buffer holds something old. Who writes next overwrites, and clears this
};

// A module with such gradients. No other use of these parameters may write their gradients.
class HasStaleGradients {
 public:
  virtual ~HasStaleGradients() = default;
  virtual std::vector<StaleGradient> stale_gradients() = 0;
};

// One trainable tensor. `master` is the autograd leaf (float32, requires_grad, and its .grad() is a view into the
// set's flat gradient buffer, so gradients always accumulate in place). `compute` is what the matrix products read: a
// copy that refresh_compute() renews where the module asks for one (HasComputeWeight) and the compute dtype is not
// float32, otherwise the same tensor as `master`.
struct Parameter {
  std::string name;
  at::Tensor master;
  at::Tensor compute;
  // Of GradientReady::groups(): the module whose uses are all that give this parameter gradients. kNoGroup: none is.
  int group = GradientReady::kNoGroup;
};

// Weights that are frozen and read in the compute dtype alone, those of embeddings and of modules with a compute
// weight, kept in that dtype from now on: a large model then needs a third of the memory. Their float32 values are
// gone. Before ParameterSet::build().
void keep_frozen_as(torch::nn::Module& module, at::ScalarType compute_dtype);

// All parameters of a model. Built once, after the module tree is complete and on its device.
class ParameterSet {
 public:
  // Takes every parameter of `module` in the order of named_parameters() (a tensor registered twice counts once),
  // allocates the flat gradient buffer, zeroed, and the compute copies, and hands the copies and the gradient groups
  // out. A parameter without requires_grad is frozen: it gets a compute copy and is not in all(); one on the meta
  // device (a layer that is held as NF4) is left alone. `blocks_run_once`: see below. Throws Error(unexpected) when a
  // parameter is not contiguous float32 (a frozen one may be of the compute dtype, which then needs no copy) or lies on
  // another device, or when none is left to train.
  void build(torch::nn::Module& module, at::ScalarType compute_dtype, bool blocks_run_once = false);

  // For a model that is not trained: freezes every parameter and keeps weights as keep_frozen_as() does. all() is
  // empty.
  void build_frozen(torch::nn::Module& module, at::ScalarType compute_dtype);

  const std::vector<Parameter>& all() const { return parameters_; }
  int64_t count() const { return count_; }

  // All gradients in one float32 vector, for norms and reductions. Each starts at a multiple of kGradAlignment
  // elements; the gaps are zero and stay zero, so the vector is a little longer than count().
  // Undefined after place_gradients().
  const at::Tensor& flat_grad() const { return flat_grad_; }
  // Where a module says that it can overwrite a gradient (HasStaleGradients) the numbers stay, marked as old:
  // settle_gradients() must follow after the backward passes, before anybody reads them, and clears what none has
  // written.
  void zero_grad();
  void settle_gradients();

  // For ranks that share the optimizer's work: moves the masters into one flat float32 vector of `size` elements, the
  // i-th to offsets[i] (a multiple of kGradAlignment), zero between them. They stay the same tensors, at another
  // address: call it before anything has kept one, e.g. a captured graph.
  void place_masters(const std::vector<int64_t>& offsets, int64_t size);
  // Undefined before place_masters().
  const at::Tensor& flat_master() const { return flat_master_; }
  // Gives each parameter the buffer that its gradients are added to from now on, contiguous float32 of its size, and
  // frees the set's own. Who calls it clears them; zero_grad() throws Error(unexpected).
  void place_gradients(const std::vector<at::Tensor>& gradients);

  // Whether every group is used once in a recorded pass, in the reverse order of GradientReady::groups(), so that no
  // gradient of a group is there before those of the group before it are complete.
  bool blocks_run_once() const { return blocks_run_once_; }

  // Copies the masters into the compute copies (one fused cast). Call after anything that writes masters.
  void refresh_compute();

  // Who learns inside the backward pass which gradients are complete. Null before build().
  GradientReady* gradient_ready() { return gradient_ready_.get(); }

  at::ScalarType compute_dtype() const { return compute_dtype_; }

  // 256 bytes: vector loads and tensor-core outputs need 16, cuBLAS picks its kernels by the alignment it sees.
  static constexpr int64_t kGradAlignment = 64;

 private:
  std::vector<Parameter> parameters_;
  std::vector<at::Tensor> copies_, copied_masters_;  // the pairs of refresh_compute()
  struct Overwritten {
    at::Tensor gradient, stale;
  };
  std::vector<Overwritten> overwritten_;
  std::vector<at::Tensor> cleared_;  // parts of flat_grad_, all but those
  at::Tensor flat_grad_, flat_master_;
  std::shared_ptr<GradientReady> gradient_ready_;
  int64_t count_ = 0;
  at::ScalarType compute_dtype_ = at::kFloat;
  bool blocks_run_once_ = false;
};

}  // namespace hrm::nn
