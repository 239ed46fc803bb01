#pragma once
// Trainable parameters: fp32 masters, their low-precision compute copies for GEMMs, and fp32 gradient buffers that live
// as long as the parameters.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "hrm/nn/block_use.h"
#include "hrm/nn/cut.h"
#include "hrm/nn/gradient_ready.h"
#include "hrm/nn/outline.h"

namespace hrm::nn {

class Embedding;
class Linear;

// A module whose weight GEMMs read. ParameterSet::build passes it the compute copy. Before that, or when computing in
// float32, the compute weight is the master itself.
class HasComputeWeight {
 public:
  virtual ~HasComputeWeight() = default;
  // The float32 leaf, a parameter of this module.
  virtual at::Tensor master_weight() const = 0;
  // Called by ParameterSet::build. Same shape as the master, compute dtype, no gradient; its contents change in place.
  virtual void set_compute_weight(const at::Tensor& weight) = 0;

  // Where the values of an outline come from (nn/outline.h); they are rounded to the dtype that the weight has now.
  // Empty: nothing is known of them yet.
  void set_source(RowSource rows);
  const RowSource& source() const { return source_; }
  // From then on only the caller knows it, and what it holds, such as mapped files, goes with it.
  RowSource take_source() { return std::exchange(source_, {}); }

 private:
  RowSource source_;
};

// The modules of a model whose masters are outlines.
class OutlineOwners {
 public:
  explicit OutlineOwners(torch::nn::Module& module);

  // The one that reads `parameter`; null if it is no outline.
  HasComputeWeight* of(const at::Tensor& parameter) const;

 private:
  void find(torch::nn::Module& module);

  std::unordered_map<const void*, HasComputeWeight*> owners_;
};

// A gradient that the module's backward pass can overwrite instead of accumulate, so that it need not be cleared first.
struct StaleGradient {
  at::Tensor master;
  at::Tensor stale;  // 0-dim bool on the CPU: the buffer is stale. The next writer overwrites it and clears this flag
};

// A module with such gradients. No other use of these parameters may write their gradients.
class HasStaleGradients {
 public:
  virtual ~HasStaleGradients() = default;
  virtual std::vector<StaleGradient> stale_gradients() = 0;
};

// One trainable tensor. `master` is the autograd leaf (float32, requires_grad). Its .grad() is a view into the set's
// flat gradient buffer, so gradients always accumulate in place. `compute` is the tensor that GEMMs read. It is a copy
// that refresh_compute() updates if the module is HasComputeWeight and the compute dtype is not float32; otherwise, and
// after cast_when_read(), it is `master`.
struct Parameter {
  std::string name;
  at::Tensor master;
  at::Tensor compute;
  // Index into GradientReady::groups(): the one module that produces this parameter's gradients. kNoGroup: there is
  // none.
  int group = GradientReady::kNoGroup;
  // Whether `compute` is the master rounded to 8 bits, which only the set writes (ParameterSet::fake_quantize).
  bool fake_quantized = false;
  // How the parameter is cut, if this is a part of a model.
  ParameterCut cut = {};
  // Whether its gradient is a partial sum, which is to be added over the parts. All parts hold the same values of such
  // a parameter, so norms count it once.
  bool sum_over_parts = false;
  // Whether passes read `compute` alone: the parameter is the weight of a linear layer of a block, of an untied head
  // or, after copy_embeddings(), a table of embeddings. Of the master they then use shape, dtype and gradient.
  bool only_compute_is_read = false;
  // The embeddings that look up its rows, if passes could read a copy alone (ParameterSet::copy_embeddings).
  std::vector<Embedding*> embeddings = {};
  // Whether its gradient is complete after those of all groups (Embedding::before_blocks).
  bool gradient_is_last = false;
  // Where its gradient begins in the flat vector.
  int64_t place = 0;
  // Whether master and compute weight are still outlines, and where their values are read.
  bool outlined = false;
  RowSource source = {};
};

// A parameter that is not trained, or a part of a quantised weight.
struct FrozenTensor {
  std::string name;
  at::Tensor tensor;  // its holders have this very tensor
  int group = GradientReady::kNoGroup;
  // Of an outline: where its values are read, or the quantised layer that it is this part of.
  bool outlined = false;
  RowSource source = {};
  Linear* layer = nullptr;
  size_t part = 0;
};

// Reads frozen tensors, also those that are outlines.
class FrozenReader {
 public:
  // The bytes `first` to first + out.numel() of the tensor. `out`: (n) bytes on its device, and for outlines with a
  // source a multiple of an element, as `first` is. Of a layer in 8 bits the rows are quantised; one in NF4 is
  // quantised as a whole, and kept until another one is read. parallel::frozen_units() does better for most of them.
  void read(const FrozenTensor& frozen, int64_t first, const at::Tensor& out);

 private:
  const Linear* layer_ = nullptr;
  std::vector<at::Tensor> parts_;  // of layer_
};

// Converts frozen weights to the compute dtype, so that a large model needs a third of the memory. Applies to weights
// that are only read in that dtype: embeddings, and modules with a compute weight. Their float32 values are discarded.
// Call before ParameterSet::build().
void keep_frozen_as(torch::nn::Module& module, at::ScalarType compute_dtype);

// All parameters of a model. Build it once, after the module tree is complete and on its device.
class ParameterSet {
 public:
  // Collects every parameter of `module` in named_parameters() order; a tensor registered twice counts once. Allocates
  // the zeroed flat gradient buffer and the compute copies, and passes copies and gradient groups to the modules. A
  // parameter without requires_grad is frozen: it gets a compute copy but is not in all(). Quantised layers read their
  // weights themselves. `blocks_run_once`: see below. Throws Error(unexpected) if a parameter is not
  // contiguous float32 or is on another device, or if no parameter is trainable. A frozen parameter may already be in
  // the compute dtype; it then needs no copy. If there are outlines among the weights, their copies are outlines, too,
  // and there is no gradient buffer before materialise() or place_gradients().
  void build(torch::nn::Module& module, at::ScalarType compute_dtype, bool blocks_run_once = false);

  // For a model that is not trained: freezes every parameter and converts weights as keep_frozen_as() does. all() is
  // empty.
  void build_frozen(torch::nn::Module& module, at::ScalarType compute_dtype);

  // Fake quantisation (Jacob et al., arXiv 1712.05877): from now on the compute weights of these modules are their
  // masters, quantised and dequantised (hrm/ops/weight8.h), in the compute dtype. Products read rounded weights in both
  // passes, and their gradient goes to the master unchanged (straight-through; Bengio et al., arXiv 1308.3432). Works
  // for frozen masters, too. No other module may read these masters. format: Float8_e4m3fn or Char. Call once, after
  // build(), and before anything (e.g. a captured graph) stores the compute weights' addresses.
  void fake_quantize(const std::vector<HasComputeWeight*>& modules, at::ScalarType format);

  // Frees the compute copies of these layers: from now on each casts its master wherever a product reads it, to the
  // same bits (Linear::compute_weight). For layers whose passes seldom read their weight in the compute dtype. No other
  // module may read these masters. Does nothing for layers that read their masters. Call as fake_quantize(), not
  // besides it.
  void cast_when_read(const std::vector<Linear*>& layers);

  // Large embeddings that are read rounded to the compute dtype (Embedding::can_read_copy) read a copy from now on,
  // with the same results, and tied heads the same one. For optimizers that keep shards of masters:
  // only_compute_is_read is then true of these tables. Does nothing in float32. Call before anything stores addresses.
  void copy_embeddings();

  const std::vector<Parameter>& all() const { return parameters_; }
  int64_t count() const { return count_; }

  // All gradients in one float32 vector, for norms and reductions. Each starts at a multiple of kGradAlignment
  // elements. The gaps always stay zero, so the vector is slightly longer than count(). Undefined after
  // place_gradients(), and while weights are outlines.
  const at::Tensor& flat_grad() const { return flat_grad_; }
  int64_t flat_size() const { return flat_size_; }
  bool gradients_are_placed() const { return gradients_are_placed_; }
  // Clears the gradients. Those that their module can overwrite (HasStaleGradients), and those of large weights of
  // products (hrm/ops/stale_gradient.h), keep their values and are marked stale. For them, call settle_gradients()
  // after the backward passes and before reading gradients; it clears those that no pass has written.
  void zero_grad();
  void settle_gradients();
  // Whether it is the weight of a product with a gradient that may be stale.
  static bool is_overwritten(const Parameter& parameter);

  // The elements `first` to first + out.numel() of master i, also of an outline, into `out` (n) float32.
  void read_master(size_t i, int64_t first, const at::Tensor& out) const;
  // Gives all weights that are still outlines storage and values, and their gradients a buffer if they have none.
  void materialise();

  // For a sharded optimizer: moves master i into `place`, contiguous float32 of its size. The tensor keeps its identity
  // but changes its address, so call this before anything (e.g. a captured graph) stores it. `has_values`: they are in
  // `place`, or get there before they are used; only for masters that are read in passes themselves, without a copy.
  void place_master(size_t i, const at::Tensor& place, bool has_values = false);
  // The same for parameters with only_compute_is_read whose masters exist only as shards: the compute weight of
  // parameter i is read at `place`, contiguous in the compute dtype and of its size, from now on. The caller fills it;
  // refresh_compute() no longer does. The master loses its storage: a copy of it would be NaN everywhere. (Without a
  // copy, in float32, `place` is the master's.)
  void place_compute(size_t i, const at::Tensor& place);
  // The tensor of frozen()[i] is read at `place`, of its size and dtype, from now on. The caller fills it;
  // refresh_compute() no longer does.
  void place_frozen(size_t i, const at::Tensor& place);
  // Sets the buffers in which gradients accumulate from now on, one per parameter, contiguous float32 of its size.
  // Frees the set's own buffer. The caller clears the new ones; zero_grad() throws Error(unexpected).
  void place_gradients(const std::vector<at::Tensor>& gradients);

  // Whether a recorded pass uses every group once, in the reverse order of GradientReady::groups(). Then a group's
  // gradients are written only after those of the preceding groups are complete.
  bool blocks_run_once() const { return blocks_run_once_; }

  // Casts the masters into the compute copies (one fused kernel), and rounds those of fake_quantize() anew. Call after
  // anything that writes masters.
  void refresh_compute();
  // Only rounds. Call after an optimizer step that wrote the other copies. Asynchronous device work at fixed addresses:
  // can be captured. Does nothing without fake_quantize().
  void refresh_fake_quantized();

  // Reports inside the backward pass which gradients are complete. Null before build().
  GradientReady* gradient_ready() { return gradient_ready_.get(); }
  // Reports which block is about to be used. Null before build().
  BlockUse* block_use() { return block_use_.get(); }
  // Whether the block of this gradient group reports its uses.
  bool reports_use(int group) const { return group >= 0 && reports_use_[static_cast<size_t>(group)] != 0; }
  // What all() leaves out.
  const std::vector<FrozenTensor>& frozen() const { return frozen_; }

  at::ScalarType compute_dtype() const { return compute_dtype_; }

  // 256 bytes: vector loads and tensor-core outputs need 16, and cuBLAS selects kernels by the alignment it sees.
  static constexpr int64_t kGradAlignment = 64;

 private:
  void make_gradients();

  // Forgets the pairs for which is_one(copy, master) is true.
  template <class IsOne>
  void forget_copies(const IsOne& is_one);

  std::vector<Parameter> parameters_;
  std::vector<at::Tensor> copies_, copied_masters_;  // the pairs that refresh_compute() casts
  struct FakeQuantized {
    at::Tensor master, compute;
  };
  std::vector<FakeQuantized> fake_quantized_;
  at::ScalarType fake_format_ = at::kChar;
  struct Overwritten {
    at::Tensor gradient, stale;  // stale: of HasStaleGradients; undefined: the buffer knows
  };
  std::vector<Overwritten> overwritten_;
  std::vector<at::Tensor> cleared_;  // the other parts of flat_grad_
  at::Tensor flat_grad_;
  int64_t flat_size_ = 0;
  bool gradients_are_placed_ = false;
  std::unordered_map<const void*, at::Tensor> stale_;  // HasStaleGradients, by master
  std::vector<FrozenTensor> frozen_;
  std::shared_ptr<GradientReady> gradient_ready_;
  std::shared_ptr<BlockUse> block_use_;
  std::vector<char> reports_use_;  // by group
  int64_t count_ = 0;
  at::ScalarType compute_dtype_ = at::kFloat;
  bool blocks_run_once_ = false;
};

}  // namespace hrm::nn
