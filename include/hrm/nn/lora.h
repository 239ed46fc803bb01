#pragma once
// Low-rank adapters beside frozen linear layers (Hu et al., "LoRA", arXiv 2106.09685; scaled by 1 / sqrt(r):
// Kalajdzievski, "rsLoRA", arXiv 2312.03732): y = x W^T + scale * dropout(x) A^T B^T. Names, initial values and meaning
// of the options are those of the PEFT library.
//
// With DoRA (Liu et al., arXiv 2402.09353) each output has a trained magnitude m, which begins as |W|, the norm of its
// row: y = g * (x W^T + scale * x A^T B^T) with g = m / |W + scale * B A|, whose norm is a constant to the gradients.
// With dropout, d = dropout(x): y = (x - d) W^T + g * (d W^T + scale * d A^T B^T).

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hrm/nn/init.h"
#include "hrm/nn/linear.h"
#include "hrm/ops/lora.h"

namespace hrm::nn {

struct LoraOptions {
  int64_t rank = 16;  // r
  double alpha = 16;  // scale = alpha / r
  double dropout = 0;
  bool rslora = false;  // scale = alpha / sqrt(r)
  // Layers that get an adapter: the whole name in the original model or the end of it ("layers.0.mlp.up_proj",
  // "up_proj"), or kAllLinear.
  std::vector<std::string> targets = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"};
  int64_t seed = 0;  // of the dropout's masks
  bool dora = false;
  // In place of targets, where set: whether the layer of this whole name gets an adapter.
  std::function<bool(const std::string&)> wants = {};
  std::string pattern = {};  // the regular expression that it stands for
  // Modules that train whole, by such names: the embedding, the head, norms, layers that are kept as they are.
  std::vector<std::string> modules_to_save = {};
  // The file that these options are of: errors name it and have its code, and targets that no layer has are passed
  // over, as PEFT does. Empty: they are the user's.
  std::string origin = {};
};
double lora_scale(const LoraOptions& options);

// What a frozen layer's products stand for: `rows` consecutive outputs of a layer are one projection of the original
// model. The parts of a layer cover its outputs in order.
struct LoraPart {
  std::string name;  // "q_proj"
  int64_t rows = 0;
};
struct AdaptableLinear {
  std::shared_ptr<Linear> linear;
  std::vector<LoraPart> parts;
};
// A module with layers that can have adapters.
class HasAdaptableLinears {
 public:
  virtual ~HasAdaptableLinears() = default;
  virtual std::vector<AdaptableLinear> adaptable_linears() = 0;
};

// How the layers of a model compute.
enum class LoraMode {
  adapter,  // W and the adapter beside it: for training
  merged,   // W + scale * B A as it was at the last LoraSet::merge(), one product: for generating. Beside NF4, whose
            // saving a merged copy would undo, it is `adapter`
  off,      // W alone: the model before training, e.g. as the reference of a KL term
};

// What all adapters of a model share.
struct LoraShared {
  LoraOptions options;
  LoraMode mode = LoraMode::adapter;
  bool merges = true;  // whether `merged` means merged weights; not beside NF4
  bool drops = true;   // whether dropout is on in gradient mode; without gradients it is always off
  at::Tensor step;     // 0-dim int64 on the device: what masks are drawn by, beside seed and layer
};

// Dropout on or off, as long as this lives. Null: nothing.
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

// The adapter of one layer, whose parts that are targets have one each. Submodules lora_A (targets * r, in), the A of
// one target below that of the one before, and lora_B (rows of the targets, r), likewise; with DoRA the parameter
// lora_magnitude_vector (rows of the targets). All targets of a layer see one mask of dropout, where PEFT draws one for
// each.
class LoraAdapter : public torch::nn::Module, public HasOwnInit {
 public:
  // wanted: which of the parts are targets; at least one.
  LoraAdapter(int64_t in, const std::vector<LoraPart>& parts, const std::vector<bool>& wanted,
              std::shared_ptr<LoraShared> shared, at::Device device);

  bool active() const { return shared_->mode == LoraMode::adapter || (!shared_->merges && asks_for_merged()); }
  bool merged() const { return shared_->merges && asks_for_merged(); }
  const std::shared_ptr<LoraShared>& shared() const { return shared_; }

  // x weight^T + adapter (+ residual), weight (out, in) frozen. (..., in) -> (..., out). Gradients of A and B are added
  // to their masters' buffers in float32, as ops::linear does; x and residual get theirs from autograd. Keeps x,
  // (..., targets * r) and the weight as it is held for the backward pass; dropout's mask is drawn again, a weight that
  // is NF4 dequantised again. Deterministic; can be captured.
  at::Tensor forward(const at::Tensor& x, const FrozenWeight& weight,
                     const std::optional<at::Tensor>& residual = {}) const;

  // What products read while merged; undefined before the first merge(). Stays at its address.
  const at::Tensor& merged_weight() const { return merged_; }
  // What ops::lora_merge_ makes it of: `weight`, (out, in) in the compute dtype, and the copies of A and B in that
  // dtype.
  ops::LoraLayer to_merge(const at::Tensor& weight);
  // The same into another tensor, which may be `weight` itself.
  ops::LoraLayer to_merge(const at::Tensor& weight, const at::Tensor& merged) const;
  void forget_merged() { merged_ = at::Tensor(); }

  // merged = weight with the adapter in it, of DoRA, which ops::lora_merge_ does not know; may be the same tensor.
  void merge_dora(const at::Tensor& weight, const at::Tensor& merged) const;
  void merge_dora(const at::Tensor& weight);
  // The magnitudes become the norms of the weight's rows: the adapter begins as nothing.
  void begin_dora(const at::Tensor& weight);

  // A (r, in) and B (rows, r) of each target, views of the masters.
  struct Pair {
    std::string name;  // "q_proj"
    at::Tensor A, B;
    at::Tensor magnitude = {};  // (rows), of DoRA
  };
  std::vector<Pair> pairs() const;

  // A uniform in +-1 / sqrt(in), B zero: the adapter begins as nothing.
  void init_own(uint64_t seed, const std::string& name) override;
  void set_seed(int64_t seed) { seed_ = seed; }
  int64_t seed() const { return seed_; }

 private:
  bool asks_for_merged() const { return shared_->mode == LoraMode::merged; }
  at::Tensor dora_forward(const at::Tensor& x, const FrozenWeight& weight, const at::Tensor& A, const at::Tensor& B,
                          double p) const;
  // |W + scale * B A| of the targets' rows, float32 (float64).
  at::Tensor dora_norms(const at::Tensor& weight) const;
  // W + scale * B A of a target, likewise.
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

// The adapters of a model. Make it before the model's parameter set is built: freezes all parameters, then gives each
// layer with targets its adapter, the submodule `lora` of the layer.
class LoraSet {
 public:
  // Error(usage), or Error(checkpoint) beside an origin: a rank below 1, dropout outside [0, 1), targets that no layer
  // has, naming those there are, and modules to train whole that are none, or held as NF4, or have an adapter.
  LoraSet(torch::nn::Module& model, const LoraOptions& options, at::Device device);

  // The initial values alone, a function of seed and names; DoRA's magnitudes are those of the weights.
  void initialise(uint64_t seed);

  const LoraOptions& options() const { return shared_->options; }
  LoraMode mode() const { return shared_->mode; }
  // What layers read from now on. `merged` needs a merge() before.
  void set_mode(LoraMode mode);
  void set_dropout(bool on) { shared_->drops = on; }
  // Masks of this rank's own, which has other rows; rank 0 has those of a single process.
  void draw_apart(int64_t rank);
  // 0-dim int64; who trains gives it another value for each micro-batch, and keeps it in checkpoints.
  const at::Tensor& step() const { return shared_->step; }
  // Renews the merged weights; the first call allocates as much memory as the layers have. Beside NF4 it does nothing.
  void merge();
  // Frees the merged weights; the mode must be another one.
  void forget_merged();

  // The merged weight of a layer by its parameter's name, "model.layers.3.self_attn.qkv_proj.weight"; undefined where
  // that is not a layer with an adapter, or before merge(). Of NF4 a new tensor each time: it is dequantised, and the
  // adapter as it is now added.
  at::Tensor merged_weight(const std::string& parameter) const;

  // By the layer's name in the original model: "model.layers.3.self_attn.q_proj".
  std::vector<LoraAdapter::Pair> pairs() const;
  // The weights of modules_to_save, by their parameters' names.
  const std::vector<std::pair<std::string, at::Tensor>>& saved() const { return saved_; }

 private:
  struct Layer {
    std::string path;    // of the module that has it: "model.layers.3.self_attn"
    std::string weight;  // name of the frozen parameter
    std::shared_ptr<Linear> linear;
    std::shared_ptr<LoraAdapter> adapter;
  };
  void save_modules(const std::vector<std::pair<std::string, at::Tensor>>& parameters);

  std::shared_ptr<LoraShared> shared_;
  std::vector<Layer> layers_;
  std::vector<std::pair<std::string, at::Tensor>> saved_;
};

// While it lives, another mode.
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
