#pragma once
// The common part of HRM, TRM, URM and the plain Transformer: the input embedding before the recursion and the heads
// after it. Shapes: B rows, S data tokens, P puzzle-embedding slots, L = P + S, D hidden, V vocabulary.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "hrm/models/puzzle_model.h"
#include "hrm/nn/block.h"
#include "hrm/nn/embedding.h"
#include "hrm/nn/linear.h"
#include "hrm/nn/rotary.h"

namespace hrm::models {

class PuzzleNetwork : public PuzzleModel {
 public:
  // x, the input of every segment: (B, L, D) compute dtype, differentiable. s = model.embed_scale * sqrt(D).
  //    rows = [puzzle embedding, zero-padded to P slots | token embedding]
  //    x = s * rows, with learned positions x = s * (rows + positions) / sqrt(2)
  // `inputs`: (B, S) integer. `puzzle_rows`: (B, puzzle_emb_ndim) float32, undefined if P = 0.
  at::Tensor embed_inputs(const at::Tensor& inputs, const at::Tensor& puzzle_rows) const;

 protected:
  // Registers embed_tokens, embed_pos, puzzle_emb, lm_head, q_head, H_init and L_init. With flat names init_hidden is
  // both H_init and L_init.
  PuzzleNetwork(const config::ModelConfig& config, const PuzzleModelDims& dims, at::Device device);

  // Registers a recurrent module of `layers` blocks under its official name. With flat names its blocks are NAME.0,
  // NAME.1, ..., otherwise NAME.layers.0 and so on.
  std::shared_ptr<nn::ReasoningModule> make_level(const std::string& name, int64_t layers);

  // Whether updates are damped or noisy.
  bool settles() const;
  // One update of a state: module(z + injection), damped and with noise as configured. `number`: counts the updates of
  // the segment, for its draws. In gradient mode with model.recompute it keeps only z and injection.
  at::Tensor update(const nn::ReasoningModule& module, const at::Tensor& z, const at::Tensor& injection,
                    const SegmentDraws& draws, int64_t& number) const;
  // The same `times` times, without gradient.
  at::Tensor recur(const nn::ReasoningModule& module, const at::Tensor& z, const at::Tensor& injection,
                   const SegmentDraws& draws, int64_t& number, int64_t times = 1) const;

  // The state `z` with which the recorded part begins. Where that is `carry`, which the caller overwrites before the
  // backward pass, model.recompute needs a copy.
  at::Tensor recorded_start(const at::Tensor& z, const at::Tensor& carry) const;

  // What the heads read from z_H.
  ReadOut read_heads(const at::Tensor& z_H) const;
  // Adds the read-out of z_H to `earlier` if each cycle of a training has a loss. Call between recorded cycles.
  void read_cycle(const at::Tensor& z_H, std::vector<ReadOut>& earlier) const;
  // Logits from the data positions of z_H, Q values from its first position, and the detached carry.
  SegmentOutput read_out(const at::Tensor& z_H, const at::Tensor& z_L) const;

  // The Q values (B, 2) float32 of z_H's first position (B, D), without autograd.
  at::Tensor read_q(const at::Tensor& first) const;

  // FLOPs of the GEMMs for one sample: one block, and the two heads.
  double block_flops() const;
  double head_flops() const;
  // FLOPs of one training step whose recorded part has this many blocks.
  double step_flops(int64_t recorded_blocks) const;
  // Number of segments that one training step runs forward: its own, and that of the Q target if there is one. There is
  // none with model.no_ACT_continue or with a single segment (objectives::act_train_segment).
  double forward_passes() const;

 private:
  friend std::shared_ptr<PuzzleModel> make_puzzle_model(const config::ModelConfig&, const PuzzleModelDims&, uint64_t,
                                                        at::Device, at::ScalarType);
  at::Tensor compute_update(const nn::ReasoningModule& module, const at::Tensor& z, const at::Tensor& injection,
                            const SegmentDraws& draws, int64_t number) const;
  at::Tensor damped(const at::Tensor& updated, const at::Tensor& z, const SegmentDraws& draws, int64_t number) const;

  // Draws the initial values and builds the parameter set. The module tree must be complete.
  void initialise(uint64_t seed, at::ScalarType compute_dtype);

  at::Device device_;
  nn::RotaryTable rotary_;
  std::shared_ptr<nn::Embedding> embed_tokens_, embed_pos_;
  std::shared_ptr<nn::Linear> lm_head_, q_head_;
};

}  // namespace hrm::models
