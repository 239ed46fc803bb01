#pragma once
// Low-rank adapters for frozen linear layers (Hu et al., "LoRA", arXiv 2106.09685):
//    y = x W^T + scale * dropout(x) A^T B^T
// With rsLoRA the scale is alpha / sqrt(r) (Kalajdzievski, arXiv 2312.03732). Names, initial values and the meaning of
// the options follow the PEFT library.
//
// With DoRA (Liu et al., arXiv 2402.09353) each output has a trained magnitude m, initialised to |W|, the norm of its
// row:
//    y = g * (x W^T + scale * x A^T B^T), g = m / |W + scale * B A|
//    y = (x - d) W^T + g * (d W^T + scale * d A^T B^T) with dropout, d = dropout(x)
// The gradient treats the norm in g as a constant.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "hrm/nn/init.h"
#include "hrm/nn/linear.h"
#include "hrm/ops/lora.h"

namespace hrm::nn {

struct AdaptedProduct;

// Where the inputs of a part of a layer are among all inputs; all = 0: it reads all of them.
struct DropoutColumns {
  int64_t first = 0, all = 0;
};

struct LoraOptions {
  int64_t rank = 16;  // r
  double alpha = 16;  // scale = alpha / r
  double dropout = 0;
  bool rslora = false;  // scale = alpha / sqrt(r)
  // Layers that get an adapter: full names in the original model or suffixes of them ("layers.0.mlp.up_proj",
  // "up_proj"), or kAllLinear.
  std::vector<std::string> targets = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"};
  int64_t seed = 0;  // of the dropout masks
  bool dora = false;
  // If set, replaces targets: returns whether the layer of this full name gets an adapter.
  std::function<bool(const std::string&)> wants = {};
  std::string pattern = {};  // the regular expression behind `wants`
  // Modules that are trained in full, named the same way: the embedding, the head, norms, or layers without an adapter.
  std::vector<std::string> modules_to_save = {};
  // The file these options come from; empty if they come from the user. With a file, errors name it and have its error
  // code, and targets that match no layer are ignored, as in PEFT.
  std::string origin = {};
};
double lora_scale(const LoraOptions& options);

// A projection of the original model: `rows` consecutive outputs of a fused frozen layer. The parts of a layer cover
// its outputs in order.
struct LoraPart {
  std::string name;  // "q_proj"
  int64_t rows = 0;
};
struct AdaptableLinear {
  std::shared_ptr<Linear> linear;
  std::vector<LoraPart> parts;
  // Parts of one expert; 0: the layer has no experts. The parts of all experts are alike, and so are their targets.
  int64_t expert_parts = 0;
};
// A module whose linear layers can have adapters.
class HasAdaptableLinears {
 public:
  virtual ~HasAdaptableLinears() = default;
  virtual std::vector<AdaptableLinear> adaptable_linears() = 0;
  // The module's path in the original model, where it is not that of ours.
  virtual std::string adapted_path(const std::string& path) const { return path; }
};

// Which weights the layers of a model use.
enum class LoraMode {
  adapter,  // W and the adapter next to it; for training
  merged,   // W + scale * B A as of the last LoraSet::merge(), one GEMM; for generation. Same as `adapter` for
            // quantised weights, because a merged copy would undo their memory saving
  off,      // W only: the base model, e.g. as the reference of a KL term
};

// State shared by all adapters of a model.
struct LoraShared {
  LoraOptions options;
  LoraMode mode = LoraMode::adapter;
  bool merges = true;  // whether mode `merged` uses merged weights; false for quantised weights
  bool drops = true;   // whether dropout is on in gradient mode; without gradients it is always off
  at::Tensor step;     // 0-dim int64 on the device; with seed and layer it selects the dropout mask
};

// Switches dropout on or off for its lifetime. Does nothing if `shared` is null.
class WithLoraDropout {
 public:
  WithLoraDropout(std::shared_ptr<LoraShared> shared, bool on) : shared_(std::move(shared)) {
    if (shared_) before_ = std::exchange(shared_->drops, on);
  }
  ~WithLoraDropout() {
    if (shared_) shared_->drops = before_;
  }
  WithLoraDropout(const WithLoraDropout&) = delete;
  WithLoraDropout& operator=(const WithLoraDropout&) = delete;

 private:
  std::shared_ptr<LoraShared> shared_;
  bool before_ = true;
};

// The adapters of one layer, one for each part that is a target. Submodules: lora_A (targets * r, in), the A of all
// targets stacked in order, and lora_B (rows of the targets, r), stacked likewise. DoRA adds the parameter
// lora_magnitude_vector (rows of the targets). All targets of a layer share one dropout mask; PEFT draws one for each.
class LoraAdapter : public torch::nn::Module, public HasOwnInit {
 public:
  // wanted: marks the parts that are targets; at least one. cut: of the layer, whose part the adapter then belongs to.
  // Of a layer cut by rows B is cut and A whole, of one cut by columns A is cut and B whole. Not with DoRA.
  LoraAdapter(int64_t in, const std::vector<LoraPart>& parts, const std::vector<bool>& wanted,
              std::shared_ptr<LoraShared> shared, at::Device device, const ParameterCut& cut = {});

  bool active() const { return shared_->mode == LoraMode::adapter || (!shared_->merges && asks_for_merged()); }
  bool merged() const { return shared_->merges && asks_for_merged(); }
  const std::shared_ptr<LoraShared>& shared() const { return shared_; }

  // x weight^T + adapter (+ residual), (..., in) -> (..., out), with a frozen weight (out, in). Gradients of A and B
  // accumulate in float32 in their masters' buffers, as in ops::linear; x and residual get theirs from autograd. Saves
  // x, one (..., targets * r) tensor and the weight in its stored form. The backward pass redraws the dropout mask, and
  // dequantises a quantised weight again or multiplies by its bytes (FrozenWeight::grad_x). Deterministic; can be
  // captured.
  at::Tensor forward(const at::Tensor& x, const FrozenWeight& weight,
                     const std::optional<at::Tensor>& residual = {}) const;

  // The weight that GEMMs read while merged; undefined before the first merge(). Its address is stable.
  const at::Tensor& merged_weight() const { return merged_; }
  // Input of ops::lora_merge_: `weight` (out, in) in the compute dtype, and the copies of A and B in that dtype.
  ops::LoraLayer to_merge(const at::Tensor& weight);
  // The same, with `merged` as the output, which may be `weight` itself.
  ops::LoraLayer to_merge(const at::Tensor& weight, const at::Tensor& merged) const;
  void forget_merged() { merged_ = at::Tensor(); }

  // DoRA's version of ops::lora_merge_: merged = weight with the adapter applied. Both may be the same tensor.
  void merge_dora(const at::Tensor& weight, const at::Tensor& merged) const;
  void merge_dora(const at::Tensor& weight);
  // Sets the magnitudes to the norms of the weight's rows, so that the adapter starts as the identity.
  void begin_dora(const at::Tensor& weight);

  // The parts of forward() for hand-written autograd functions (src/nn/adapted_product.h). Without DoRA.
  AdaptedProduct product(const FrozenWeight& weight, bool drops = true) const;
  bool has_dora() const { return magnitude_.defined(); }

  // For layers that compute the adapter themselves: lora_A, lora_B and which outputs the targets are.
  const Linear& A() const { return *lora_A_; }
  const Linear& B() const { return *lora_B_; }
  const std::vector<ops::LoraSlice>& slices() const { return slices_; }

  // A (r, in) and B (rows, r) of each target, as views of the masters.
  struct Pair {
    std::string name;  // "q_proj"
    at::Tensor A, B;
    at::Tensor magnitude = {};  // (rows), DoRA only
    // Of a layer that is cut: which part of the whole A and B these are.
    ParameterCut A_cut = {}, B_cut = {};
  };
  std::vector<Pair> pairs() const;

  // A is uniform in +-1 / sqrt(in) and B is zero, so that the adapter starts as the identity.
  void init_own(uint64_t seed, const std::string& name) override;
  void set_seed(int64_t seed) { seed_ = seed; }
  int64_t seed() const { return seed_; }

 private:
  bool asks_for_merged() const { return shared_->mode == LoraMode::merged; }
  DropoutColumns columns() const;
  at::Tensor dora_forward(const at::Tensor& x, const FrozenWeight& weight) const;
  // W + scale * B A| for the targets' rows, float32 (float64 for float64).
  at::Tensor dora_norms(const at::Tensor& weight) const;
  // W + scale * B A of one target, in the same dtype.
  at::Tensor adapted_rows(size_t target, const at::Tensor& weight) const;

  std::shared_ptr<LoraShared> shared_;
  std::vector<LoraPart> targets_;
  std::vector<ops::LoraSlice> slices_;
  int64_t out_ = 0;
  int64_t seed_ = 0;
  std::shared_ptr<Linear> lora_A_, lora_B_;
  at::Tensor magnitude_;  // undefined without DoRA
  at::Tensor merged_;
};

// All adapters of a model. Construct it before the model's parameter set is built. Freezes all parameters, then adds an
// adapter to each layer that has targets, as the layer's submodule `lora`.
class LoraSet {
 public:
  // Throws Error(usage), or Error(checkpoint) if the options have an origin, for:
  //    - a rank below 1, or dropout outside [0, 1)
  //    - targets that match no layer (the error lists the valid ones), or only some experts of a layer
  //    - dropout or DoRA on experts, or DoRA on a part of a layer
  //    - modules_to_save that do not exist, are quantised or have an adapter
  LoraSet(torch::nn::Module& model, const LoraOptions& options, at::Device device);

  // Sets only the initial values, which depend on seed and names; DoRA's magnitudes come from the weights.
  void initialise(uint64_t seed);

  const LoraOptions& options() const { return shared_->options; }
  LoraMode mode() const { return shared_->mode; }
  // Selects which weights layers read. `merged` requires an earlier merge().
  void set_mode(LoraMode mode);
  void set_dropout(bool on) { shared_->drops = on; }
  // Gives this rank its own dropout masks, because it has other rows. Rank 0 has the masks of a single process.
  void draw_apart(int64_t rank);
  // 0-dim int64. The trainer changes it for every micro-batch and saves it in checkpoints.
  const at::Tensor& step() const { return shared_->step; }
  // Recomputes the merged weights. The first call allocates as much memory as the layers use. Does nothing for
  // quantised weights.
  void merge();
  // Frees the merged weights. The mode must not be `merged`.
  void forget_merged();

  // The merged weight of a layer, given its parameter's name, e.g. "model.layers.3.self_attn.qkv_proj.weight".
  // Undefined before merge(), or if that is not a layer with an adapter. For quantised weights every call returns a new
  // tensor: the dequantised weight plus the current adapter.
  at::Tensor merged_weight(const std::string& parameter) const;

  // Named by the layer in the original model, e.g. "model.layers.3.self_attn.q_proj".
  std::vector<LoraAdapter::Pair> pairs() const;
  // The weights of modules_to_save, with their parameter names.
  const std::vector<std::pair<std::string, at::Tensor>>& saved() const { return saved_; }
  // How one of these is cut.
  ParameterCut saved_cut(const at::Tensor& weight) const { return cuts_.of(weight); }

 private:
  struct Layer {
    std::string path;    // of the module that owns the layer: "model.layers.3.self_attn"
    std::string weight;  // name of the frozen parameter
    std::shared_ptr<Linear> linear;
    std::shared_ptr<LoraAdapter> adapter;
  };
  void save_modules(const std::vector<std::pair<std::string, at::Tensor>>& parameters,
                    const std::map<std::string, WeightFormat>& quantized);

  std::shared_ptr<LoraShared> shared_;
  ParameterCuts cuts_;  // of the model
  std::vector<Layer> layers_;
  std::vector<std::pair<std::string, at::Tensor>> saved_;
};

// Sets another mode for its lifetime.
class WithLoraMode {
 public:
  WithLoraMode(LoraSet& set, LoraMode mode) : set_(set), before_(set.mode()) { set.set_mode(mode); }
  ~WithLoraMode() { set_.set_mode(before_); }
  WithLoraMode(const WithLoraMode&) = delete;
  WithLoraMode& operator=(const WithLoraMode&) = delete;

 private:
  LoraSet& set_;
  LoraMode before_;
};

}  // namespace hrm::nn
