#pragma once
// Settings of the network of task=puzzle: section model. Names and defaults follow the official HRM and TRM
// configurations.

#include <cstdint>
#include <iterator>
#include <string>

#include "hrm/config/field.h"

namespace hrm::config {

enum class PuzzleArch { hrm, trm, transformer, urm };
template <>
struct EnumNames<PuzzleArch> {
  static constexpr const char* kNames[] = {"hrm", "trm", "transformer", "urm"};
};

// What tells the architectures apart; all else follows from the sizes. Rules, estimates and exports ask these.
struct PuzzleArchFacts {
  // z_H is updated by blocks of its own (model.H_layers); otherwise by those of the L module.
  bool h_module = false;
  // A segment makes H_cycles times L_cycles updates of z_L, and H_cycles of z_H; otherwise one pass over the blocks.
  bool cycles = false;
  // z_H is the only state: its updates take the place of those of z_L, and z_L is passed on unread.
  bool one_state = false;
  // Only the last update of z_L and of z_H is differentiated; otherwise the last model.gradient_cycles H cycles, or the
  // one pass.
  bool one_step_gradient = false;
  // Published names: the blocks are layers.N instead of L_level.layers.N, and init_hidden replaces H_init and L_init.
  bool flat_names = false;
  // The SwiGLU of a block convolves over positions (nn::SwiGLU), which needs blocks with attention.
  bool convolution = false;
};
inline constexpr PuzzleArchFacts kPuzzleArchFacts[] = {
    {.h_module = true, .cycles = true, .one_step_gradient = true},                 // hrm
    {.cycles = true},                                                              // trm
    {.one_state = true},                                                           // transformer
    {.cycles = true, .one_state = true, .flat_names = true, .convolution = true},  // urm
};
static_assert(std::size(kPuzzleArchFacts) == std::size(EnumNames<PuzzleArch>::kNames));

enum class PositionEncoding { rope, learned, none };
template <>
struct EnumNames<PositionEncoding> {
  static constexpr const char* kNames[] = {"rope", "learned", "none"};
};

struct ModelConfig {
  PuzzleArch arch = PuzzleArch::hrm;
  int64_t hidden_size = 512;
  int64_t num_heads = 8;
  double expansion = 4;
  int64_t H_cycles = 2;
  int64_t L_cycles = 2;
  int64_t H_layers = 4;
  int64_t L_layers = 4;
  PositionEncoding pos_encodings = PositionEncoding::rope;
  int64_t puzzle_emb_ndim = -1;
  int64_t puzzle_emb_len = 0;
  bool mlp_t = false;
  bool no_ACT_continue = false;
  int64_t halt_max_steps = 16;
  double halt_exploration_prob = 0.1;
  double rms_norm_eps = 1e-5;
  double rope_theta = 10000;
  double embed_scale = 1;
  double start_std = 0;
  double damping = 0;
  double path_noise = 0;
  bool depth_curriculum = false;
  int64_t gradient_cycles = 1;
  bool loss_every_cycle = false;
  bool recompute = false;

  // Whether a segment depends on random numbers (models::SegmentDraws).
  bool draws() const { return path_noise > 0; }

  const PuzzleArchFacts& facts() const { return kPuzzleArchFacts[static_cast<size_t>(arch)]; }

  template <class F>
  static void describe(F&& f) {
    f("arch", &ModelConfig::arch, Choice<PuzzleArch>{}, "",
      "hrm = Hierarchical Reasoning Model; trm = Tiny Recursive Model; transformer = a plain baseline that has "
      "L_layers blocks; urm = Universal Reasoning Model, one state and a convolution in each SwiGLU");
    f("hidden_size", &ModelConfig::hidden_size, IntRange{2, 65536}, "", "width D that all blocks share");
    f("num_heads", &ModelConfig::num_heads, IntRange{1, 1024}, "heads",
      "attention heads, which must divide hidden_size",
      ReadWhen{.key = "model.mlp_t",
               .values = {"true"},
               .why = "replaces attention",
               .way_out = "set model.mlp_t to false",
               .unless = true});
    f("expansion", &ModelConfig::expansion, RealRange{0, 64, true}, "",
      "sets the SwiGLU width to expansion * D * 2/3, rounded up to a multiple of 256");
    f("H_cycles", &ModelConfig::H_cycles, IntRange{1, 1024}, "cycles",
      "high-level cycles of one segment (transformer: 1)");
    f("L_cycles", &ModelConfig::L_cycles, IntRange{1, 1024}, "cycles",
      "low-level cycles in each high-level cycle (transformer: 1). urm updates its one state in each");
    f("H_layers", &ModelConfig::H_layers, IntRange{0, 1024}, "blocks",
      "blocks of the H module; 0 for all but hrm, which alone has one");
    f("L_layers", &ModelConfig::L_layers, IntRange{1, 1024}, "blocks",
      "blocks of the L module; for transformer and urm, all blocks");
    f("pos_encodings", &ModelConfig::pos_encodings, Choice<PositionEncoding>{}, "",
      "how positions are encoded: rope = rotary, learned = a learned vector per position");
    f("puzzle_emb_ndim", &ModelConfig::puzzle_emb_ndim, IntRange{-1, 1 << 20}, "",
      "width of the puzzle embedding; -1 = use hidden_size, 0 = have no puzzle embedding");
    f("puzzle_emb_len", &ModelConfig::puzzle_emb_len, IntRange{0, 1024}, "tokens",
      "prefix positions of the puzzle embedding, zero-padded; 0 = as many as puzzle_emb_ndim needs");
    f("mlp_t", &ModelConfig::mlp_t, Flag{}, "", "replace attention by a SwiGLU over the sequence axis (TRM-MLP)");
    f("no_ACT_continue", &ModelConfig::no_ACT_continue, Flag{}, "",
      "halt when q_halt > 0 and skip the second forward pass of the Q-continue head (TRM's setting)",
      OtherName{.name = "halt.q_continue", .inverted = true});
    f("halt_max_steps", &ModelConfig::halt_max_steps, IntRange{1, 65535}, "segments",
      "halt a sample after this many segments at the latest. Evaluation runs all of them");
    f("halt_exploration_prob", &ModelConfig::halt_exploration_prob, RealRange{0, 1}, "",
      "probability that a sample must run a random minimum number of segments");
    f("rms_norm_eps", &ModelConfig::rms_norm_eps, RealRange{0, 1, true}, "",
      "epsilon that RMSNorm adds to the mean square");
    f("rope_theta", &ModelConfig::rope_theta, RealRange{0, 1e12, true}, "",
      "base that the rotary frequencies are computed from",
      ReadWhen{"model.pos_encodings", {"rope"}, "rotates nothing", "set model.pos_encodings to rope"});
    f("embed_scale", &ModelConfig::embed_scale, RealRange{0, 1e6, true}, "",
      "multiply the input embedding by this, besides sqrt(hidden_size). A larger input weighs more against the state");
    f("start_std", &ModelConfig::start_std, RealRange{0, 100}, "",
      "start each sample from a random state of this standard deviation (EqR, arXiv 2605.21488: 1); 0 = from the rows "
      "H_init and L_init");
    f("damping", &ModelConfig::damping, RealRange{0, 1, false, true}, "",
      "fraction of its value that a state keeps at each update (EqR: 0.05); 0 = replace it");
    f("path_noise", &ModelConfig::path_noise, RealRange{0, 100}, "",
      "standard deviation of the noise that is added at each update of z_H and z_L, in evaluations too (EqR: 0.01)");
    f("depth_curriculum", &ModelConfig::depth_curriculum, Flag{}, "",
      "train the first 30 % of the steps with a third of H_cycles and L_cycles and the next 30 % with two thirds "
      "(CGAR, arXiv 2511.08653). Evaluations run all of them",
      Resume::fixed);
    f("gradient_cycles", &ModelConfig::gradient_cycles, IntRange{1, 1024}, "cycles",
      "number of last H cycles of a segment that are differentiated (trm, urm); 1 = the published rule, H_cycles = all",
      Resume::fixed);
    f("loss_every_cycle", &ModelConfig::loss_every_cycle, Flag{}, "",
      "use the mean of the losses after each differentiated H cycle instead of the loss after the last one "
      "(trm, urm)",
      Resume::fixed,
      ReadWhen{.key = "model.gradient_cycles",
               .values = {"1"},
               .why = "differentiates one H cycle, whose loss is the usual one",
               .way_out = "set model.gradient_cycles to 2 or more",
               .unless = true});
    f("recompute", &ModelConfig::recompute, Flag{}, "",
      "keep only each update's input and compute the rest again in the backward pass (activation checkpointing; all "
      "but transformer)",
      Resume::free);
  }
};

}  // namespace hrm::config
