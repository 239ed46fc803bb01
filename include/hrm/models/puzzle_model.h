#pragma once
// The model interface of the puzzle task: one ACT segment. HRM, TRM, URM and the plain Transformer implement it.
// Shapes: B rows, S data tokens, P puzzle-embedding slots, L = P + S, D hidden, V vocabulary.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "hrm/config/config.h"
#include "hrm/data/batch.h"
#include "hrm/nn/fp8.h"
#include "hrm/nn/parameter.h"

namespace hrm::models {

// The recurrent state between segments, detached from autograd.
struct Carry {
  at::Tensor z_H;  // (B, L, D) compute dtype
  at::Tensor z_L;  // (B, L, D) compute dtype
};

// What the random numbers of a segment depend on, besides the seed. Only models with config().draws() read it.
struct SegmentDraws {
  at::Tensor first;  // (B) int64 = key of the row * 2^16 + number of the segment's first update (draws_of_segment)
  uint64_t seed = 0;
  // Instead of draws, to compare with other programs: (updates, B, L, D), standard normal.
  at::Tensor given = {};
};

// What the heads read from z_H.
struct ReadOut {
  at::Tensor position_logits;  // (B, L, V) compute dtype
  at::Tensor q;                // (B, 2) float32 = [q_halt, q_continue]
};

struct SegmentOutput {
  Carry carry;            // detached
  at::Tensor logits;      // (B, S, V) compute dtype
  at::Tensor q_halt;      // (B) float32
  at::Tensor q_continue;  // (B) float32
  // The heads' outputs, of which the above are views. A loss that reads these avoids the backward passes of the views.
  // Undefined in outputs that were assembled by hand.
  at::Tensor position_logits = {};  // (B, L, V)
  at::Tensor q = {};                // (B, 2) float32 = [q_halt, q_continue]
  // With model.loss_every_cycle, in gradient mode: what the heads read after the other differentiated H cycles, in
  // order.
  std::vector<ReadOut> earlier = {};
};

// Sizes derived from the configuration and the data.
struct PuzzleModelDims {
  int64_t seq_len = 0;                 // S
  int64_t vocab_size = 0;              // V
  int64_t num_puzzle_identifiers = 1;  // rows of the puzzle embedding
  int64_t puzzle_emb_ndim = 0;         // resolved: 0 = no puzzle embedding
  int64_t puzzle_emb_len = 0;          // resolved P
};
// Resolves the -1 and 0 defaults of the configuration. Throws Error(usage) for contradictory values.
PuzzleModelDims resolve_dims(const config::ModelConfig& config, const data::PuzzleMeta& meta);

class PuzzleModel : public torch::nn::Module {
 public:
  PuzzleModel(config::ModelConfig config, PuzzleModelDims dims)
      : config_(std::move(config)), dims_(dims), H_cycles_(config_.H_cycles), L_cycles_(config_.L_cycles) {}

  // Runs one segment from `carry`. `puzzle_rows`: (B, puzzle_emb_ndim) float32, the puzzle embeddings of the samples;
  // undefined if there are none. The caller gathers them, so that training can pass a leaf and read its gradient.
  // Differentiable in gradient mode, by the model's own rule (HRM: one step; TRM and URM: the last cycles, see
  // gradient_cycles()). With model.recompute the backward pass runs the recorded updates again; `draws` must still hold
  // its values then. Runs on the current stream.
  virtual SegmentOutput segment(const Carry& carry, const at::Tensor& inputs, const at::Tensor& puzzle_rows,
                                const SegmentDraws& draws = {}) = 0;

  // Only the Q values of segment(), (B, 2) float32 = [q_halt, q_continue], without autograd: the target of Q learning.
  // Skips work that only logits and carry need. Equals segment() up to the rounding of differently shaped GEMMs, and
  // for HRM with fp8() active up to fp8 rounding.
  virtual at::Tensor q_values(const Carry& carry, const at::Tensor& inputs, const at::Tensor& puzzle_rows,
                              const SegmentDraws& draws = {});

  // Rows of z_H and z_L for samples that start: H_init and L_init, (D) float32 buffers, not trained. URM: both are the
  // buffer init_hidden.
  const at::Tensor& H_init() const { return H_init_; }
  const at::Tensor& L_init() const { return L_init_; }

  // Starts the rows of `carry` (B, L, D) where `fresh` (B) bool is true, in place: H_init and L_init, or with
  // config().start_std random states that depend on seed and `keys`, (B) int64 from 0 to 2^47 - 1.
  void start_rows(const Carry& carry, const at::Tensor& fresh, const at::Tensor& keys, uint64_t seed) const;
  // Start or segments of this model depend on keys.
  bool needs_keys() const { return config_.start_std > 0 || config_.draws(); }
  // The draws of the segments with these numbers, from 0 on: `segments` (B) integer or 0-dim int64, on keys' device.
  // Undefined where the model draws nothing. Throws Error(unexpected) if a model that draws has no keys.
  SegmentDraws draws_of_segment(const at::Tensor& keys, const at::Tensor& segments, uint64_t seed) const;

  // The cycles that segment() makes, e.g. fewer in the beginning of a training; the configured ones at first.
  void set_cycles(int64_t H_cycles, int64_t L_cycles) {
    H_cycles_ = H_cycles;
    L_cycles_ = L_cycles;
  }
  int64_t H_cycles() const { return H_cycles_; }
  int64_t L_cycles() const { return L_cycles_; }
  // The last H cycles of segment() that are differentiated: model.gradient_cycles, or all if there are fewer.
  int64_t gradient_cycles() const { return std::min(config_.gradient_cycles, H_cycles_); }

  // FLOPs of the GEMMs (2mnk each) for one sample in one training step: segment forward and backward. Includes the
  // second forward for the Q target if configured.
  virtual double flops_per_sample_step() const = 0;
  virtual double flops_per_sample_segment() const = 0;

  // Whether the recorded part of a segment uses each block once (nn::ParameterSet::blocks_run_once).
  virtual bool blocks_run_once() const { return true; }

  // (E, puzzle_emb_ndim) float32 buffer `puzzle_emb.weights`; undefined if puzzle_emb_ndim is 0.
  at::Tensor& puzzle_embedding() { return puzzle_emb_weights_; }

  const config::ModelConfig& config() const { return config_; }
  const PuzzleModelDims& dims() const { return dims_; }
  nn::ParameterSet& parameter_set() { return parameters_; }

  // Enables fp8 in recursions without gradient, while fp8()->set_active() is on.
  void enable_fp8(int64_t history, double margin) {
    fp8_ = std::make_unique<nn::Fp8Recursions>(*this, history, margin);
  }
  nn::Fp8Recursions* fp8() { return fp8_.get(); }  // null if not enabled

 protected:
  config::ModelConfig config_;
  PuzzleModelDims dims_;
  int64_t H_cycles_, L_cycles_;
  at::Tensor H_init_, L_init_, puzzle_emb_weights_;
  nn::ParameterSet parameters_;
  std::unique_ptr<nn::Fp8Recursions> fp8_;
};

// Builds the model of config.arch on `device`, computing in `compute_dtype`. The initial weights depend only on seed
// and parameter names. Parameters and buffers have the official names without their "model.inner." prefix, e.g.
// "H_level.layers.0.self_attn.qkv_proj.weight".
std::shared_ptr<PuzzleModel> make_puzzle_model(const config::ModelConfig& config, const PuzzleModelDims& dims,
                                               uint64_t seed, at::Device device, at::ScalarType compute_dtype);

// The same model on the meta device: names, shapes and sizes without values, in negligible time for any size. Its
// parameter set is empty and it cannot run.
std::shared_ptr<PuzzleModel> make_puzzle_model_outline(const config::ModelConfig& config, const PuzzleModelDims& dims);

}  // namespace hrm::models
