#include <vector>

#include "hrm/base/error.h"
#include "hrm/tasks/row_pool.h"
#include "tasks/puzzle/plan.h"

namespace hrm::tasks {
namespace {

// Walks through one step of the fused implementation (nn/sub_blocks.cpp, models/*.cpp) as the allocator sees it.
class StepWalk {
 public:
  StepWalk(const config::ModelConfig& model, const PuzzleSizes& sizes, bool second_forward)
      : m_(model),
        h_layers_(model.facts().h_module ? model.H_layers : model.L_layers),
        s_(sizes),
        second_forward_(second_forward) {}

  // Returns the ledger after forward, Q target and backward of one micro-batch.
  Ledger run() {
    if (m_.facts().one_step_gradient) {
      one_step_forward();
    } else if (m_.facts().cycles && m_.facts().one_state) {
      one_state_forward();
    } else if (m_.facts().cycles) {
      whole_cycle_forward();
    } else {
      ledger_.moment = "forward pass";
      embed();
      level_forward(m_.L_layers, "forward pass");
      ledger_.give(s_.unit);  // the embedded input
    }
    ledger_.moment = "loss";
    const double logits = losses_per_step(m_) * s_.logits;
    ledger_.take(logits);
    if (second_forward_) q_target();
    ledger_.moment = "loss";
    ledger_.take(logits);   // its gradient
    ledger_.take(s_.unit);  // of the last state
    backward();
    return ledger_;
  }

 private:
  // What one recorded block keeps.
  struct Kept {
    double mixing = 0;   // inputs of attention or of the MLP over positions, and its result
    double gate_up = 0;  // of the feed-forward part, with the activation
    double output = 0;
    double total() const { return mixing + gate_up + output; }
  };

  void embed() { ledger_.take(s_.unit); }

  void keep(double bytes) {
    ledger_.kept += bytes;
    ledger_.take(bytes);
  }

  // A product, residual and norm that leave `result` bytes. Where they are not one kernel, the product is held beside.
  void normed_product(double result, bool recorded) {
    const double product = s_.fused_norm ? 0 : s_.unit;
    ledger_.take(product);
    if (recorded) ledger_.kept += result;
    ledger_.take(result);
    ledger_.give(product);
  }

  // One block without gradient, its input held by the caller; holds the output when it returns.
  void block_plain() {
    if (s_.mixes_by_mlp) {
      ledger_.take(s_.unit);
    } else {
      const double qkv = (s_.short_attention ? 3 : 6) * s_.unit;  // long sequences are rotated into a second copy
      ledger_.take(qkv);
      ledger_.take(s_.unit);
      ledger_.give(qkv);
      normed_product(s_.unit, false);  // the first half's output
      ledger_.give(s_.unit);
    }
    if (!s_.fused_gate) ledger_.take(s_.gate_up);
    ledger_.take(s_.gate_up / 2);
    if (!s_.fused_gate) ledger_.give(s_.gate_up);
    normed_product(s_.unit, false);
    ledger_.give(s_.gate_up / 2);
    ledger_.give(s_.unit);  // the first half's output
  }

  // The same with matrix products in 8 bits. Where attention mixes, the input and the output are held in e4m3, too.
  void block_fp8() {
    const bool mlp = s_.mixes_by_mlp;
    const double unit8 = s_.unit / 2, outer8 = mlp ? 0 : unit8, act8 = s_.gate_up / 4;
    const double qkv = mlp ? 0 : (s_.short_attention ? 3 : 6) * s_.unit;
    const double mixed = mlp || s_.short_attention ? 0 : s_.unit;  // in 16 bits, where no kernel writes e4m3
    const double gate_up = s_.fused_gate8 ? 0 : 1.5 * s_.gate_up;  // and the activation in 16 bits
    ledger_.take(outer8);
    ledger_.take(qkv);
    ledger_.take(mixed + outer8);
    ledger_.give(qkv + mixed);
    if (mlp) {
      ledger_.take(s_.unit + unit8);
    } else {
      normed_product(s_.unit + unit8, false);  // the first half's output
      ledger_.give(outer8);                    // the mixed values
    }
    ledger_.take(gate_up);
    ledger_.take(act8);
    ledger_.give(gate_up);
    normed_product(s_.unit + outer8, false);
    ledger_.give(act8 + s_.unit + unit8 + 2 * outer8);
  }

  // A recurrent module without gradient; holds the output when it returns. `recursion`: of those that fp8 is for,
  // but the last blocks.
  void level_plain(int64_t layers, bool recursion, int64_t last_blocks = 0) {
    ledger_.take(s_.unit);  // state + injection
    for (int64_t i = 0; i < layers; ++i) {
      if (recursion && s_.fp8 && i < layers - last_blocks) {
        block_fp8();
      } else {
        block_plain();
      }
      ledger_.give(s_.unit);
    }
  }

  void block_recorded() {
    Kept kept;
    if (s_.mixes_by_mlp) {
      kept.mixing = s_.unit + s_.column_rstd;
      keep(kept.mixing);
    } else {
      if (!s_.short_attention) ledger_.take(3 * s_.unit);  // qkv before the rotation
      keep(3 * s_.unit);
      if (!s_.short_attention) ledger_.give(3 * s_.unit);
      keep(s_.unit + s_.lse);
      normed_product(s_.unit + s_.rstd, true);
      kept.mixing = 5 * s_.unit + s_.lse + s_.rstd;
    }
    kept.gate_up = 1.5 * s_.gate_up;
    keep(kept.gate_up);
    kept.output = s_.unit + s_.rstd;
    normed_product(kept.output, true);
    kept_layers_.push_back(kept);
  }

  // A recurrent module that is recorded: keeps its input sum and what its blocks keep.
  void level_forward(int64_t layers, const char* moment) {
    ledger_.moment = moment;
    keep(s_.unit);
    for (int64_t i = 0; i < layers; ++i) block_recorded();
  }

  // A recorded update of a recurrent module. With recomputation it keeps only its output, the input of a later one.
  void update_forward(int64_t layers) {
    const size_t first = kept_layers_.size();
    level_forward(layers, "recorded forward pass");
    if (!m_.recompute) return;
    double passing = s_.unit;
    for (size_t i = first; i < kept_layers_.size(); ++i) passing += kept_layers_[i].total();
    kept_layers_.resize(first);
    ledger_.give(passing);
    ledger_.kept -= passing;
    keep(s_.unit);
    updates_.push_back(layers);
  }

  // A state of the start that a recorded update reads; `own`: it is not the carry, which needs a copy that outlives it.
  void read_later(bool own) {
    if (!m_.recompute) return;
    if (!own) ledger_.take(s_.unit);
    ledger_.kept += s_.unit;
  }
  void have_read(bool own) {
    if (own && !m_.recompute) ledger_.give(s_.unit);
  }

  // An injection that is no longer needed in the forward pass.
  void have_injected() {
    if (m_.recompute) {
      ledger_.kept += s_.unit;
    } else {
      ledger_.give(s_.unit);
    }
  }

  // The recursions of one segment that are not recorded; the states that it leaves are held.
  void one_step_recursions(bool& own_H, bool& own_L) {
    for (int64_t h = 0; h < m_.H_cycles; ++h) {
      const bool last = h + 1 == m_.H_cycles;
      ledger_.take(s_.unit);  // injection
      for (int64_t l = 0; l < m_.L_cycles - (last ? 1 : 0); ++l) {
        level_plain(m_.L_layers, true);
        if (own_L) ledger_.give(s_.unit);
        own_L = true;
      }
      if (!last) {
        level_plain(h_layers_, true);
        if (own_H) ledger_.give(s_.unit);
        own_H = true;
      }
      ledger_.give(s_.unit);
    }
  }

  void one_step_forward() {
    bool own_H = false, own_L = false;  // the states at the start are the carry
    ledger_.moment = "recursions";
    embed();
    one_step_recursions(own_H, own_L);
    ledger_.take(s_.unit);  // injection of the last L call
    read_later(own_L);
    update_forward(m_.L_layers);
    have_injected();
    have_read(own_L);
    read_later(own_H);
    update_forward(h_layers_);
    have_read(own_H);
    ledger_.give(s_.unit);  // the embedded input
  }

  void whole_cycle_forward() {
    bool own_H = false, own_L = false;
    ledger_.moment = "recursions";
    embed();
    for (int64_t h = 0; h < m_.H_cycles - m_.gradient_cycles; ++h) plain_cycle(own_H, own_L, true);
    read_later(own_L);
    read_later(own_H);
    for (int64_t h = 0; h < m_.gradient_cycles; ++h) {
      ledger_.take(s_.unit);  // injection
      for (int64_t l = 0; l <= m_.L_cycles; ++l) {
        update_forward(m_.L_layers);
        // What replaces the states at the start is kept for the backward pass anyway.
        if (h == 0 && l == 0) have_read(own_L);
        if (h == 0 && l == m_.L_cycles) have_read(own_H);
      }
      have_injected();
    }
    ledger_.give(s_.unit);  // the embedded input
  }

  // `times` updates of the one state without gradient; holds the last one when it returns.
  void one_state_recursion(int64_t times) {
    for (int64_t i = 0; i < times; ++i) {
      level_plain(m_.L_layers, true);
      if (i > 0) ledger_.give(s_.unit);
    }
  }

  void one_state_forward() {
    ledger_.moment = "recursions";
    embed();
    const int64_t plain = (m_.H_cycles - m_.gradient_cycles) * m_.L_cycles;
    one_state_recursion(plain);
    read_later(plain > 0);
    for (int64_t l = 0; l < m_.gradient_cycles * m_.L_cycles; ++l) {
      update_forward(m_.L_layers);
      if (l == 0) have_read(plain > 0);  // later states are kept for the backward pass
    }
    have_injected();  // the embedded input
  }

  void plain_cycle(bool& own_H, bool& own_L, bool recursion) {
    ledger_.take(s_.unit);
    for (int64_t l = 0; l <= m_.L_cycles; ++l) {
      level_plain(m_.L_layers, recursion);
      bool& own = l < m_.L_cycles ? own_L : own_H;
      if (own) ledger_.give(s_.unit);
      own = true;
    }
    ledger_.give(s_.unit);
  }

  // One more segment without gradient, while everything that the backward pass needs is held.
  void q_target() {
    ledger_.moment = "forward pass for the Q target";
    bool own_H = false, own_L = false;
    embed();
    if (m_.facts().one_step_gradient) {
      one_step_recursions(own_H, own_L);
      ledger_.take(s_.unit);
      level_plain(m_.L_layers, true);
      ledger_.give(s_.unit);
      if (own_L) ledger_.give(s_.unit);
      own_L = true;
      level_plain(h_layers_, true, 1);
      ledger_.give(s_.unit);
    } else if (m_.facts().cycles && m_.facts().one_state) {
      one_state_recursion(m_.H_cycles * m_.L_cycles);
      own_H = true;
    } else if (m_.facts().cycles) {
      for (int64_t h = 0; h < m_.H_cycles; ++h) plain_cycle(own_H, own_L, h + 1 < m_.H_cycles);
    } else {
      level_plain(m_.L_layers, false);
      own_H = true;
    }
    ledger_.give(s_.unit * (1 + (own_H ? 1 : 0) + (own_L ? 1 : 0)));
  }

  // The gradient of the last state is held.
  void backward() {
    ledger_.moment = "backward pass";
    blocks_backward();
    while (!updates_.empty()) {
      level_forward(updates_.back(), "backward pass");
      updates_.pop_back();
      blocks_backward();
      ledger_.give(2 * s_.unit);  // the input sum and the input
      ledger_.kept -= 2 * s_.unit;
    }
  }

  // Of the blocks whose values are there.
  void blocks_backward() {
    while (!kept_layers_.empty()) {
      const Kept kept = kept_layers_.back();
      kept_layers_.pop_back();
      // Feed-forward part: gradient of the sum, of the activation, of gate_up.
      const double grad_act = s_.fused_gate ? 0 : s_.gate_up / 2;
      ledger_.take(s_.unit);
      ledger_.take(grad_act);
      ledger_.take(s_.gate_up);
      ledger_.give(grad_act + s_.gate_up);
      ledger_.give(s_.unit + kept.gate_up);
      // The other part: gradient of the sum, of the mixed values, of qkv.
      ledger_.take(s_.unit);
      if (!s_.mixes_by_mlp) {
        const double qkv = (s_.short_attention ? 4 : 7) * s_.unit;
        ledger_.take(qkv);
        ledger_.give(qkv);
      }
      ledger_.give(s_.unit + kept.mixing + kept.output);
      ledger_.kept -= kept.total();
    }
  }

  const config::ModelConfig& m_;
  int64_t h_layers_;  // blocks of an update of z_H
  const PuzzleSizes& s_;
  bool second_forward_;
  Ledger ledger_;
  std::vector<Kept> kept_layers_;
  std::vector<int64_t> updates_;  // blocks of the recorded ones that are computed again
};

}  // namespace

void PuzzlePlan::add_memory(const PlanInput& in, int64_t micro, PlannedMemory& memory) const {
  const config::Config& c = in.config;
  const auto all_slots = static_cast<double>(c.train.global_batch_size);
  const double slots = all_slots / static_cast<double>(in.ranks);
  const auto D = static_cast<double>(c.model.hidden_size), S = static_cast<double>(dims_.seq_len);
  const double L = static_cast<double>(dims_.puzzle_emb_len) + S;
  const auto embedding = static_cast<double>(dims_.puzzle_emb_ndim);
  if (embedding > 0) {
    memory.add("puzzle embedding", 4 * embedding * (static_cast<double>(dims_.num_puzzle_identifiers) + 2 * slots),
               "table, rows of the batch and their gradients, fp32");
  }
  memory.add("carry", 2 * slots * L * D * element_size(c), "z_H and z_L of every slot");
  // Rows of the slots, of the next batch and of the pool for the slots of all ranks; the table that they are drawn
  // from.
  const double pool = c.data.reference_semantics ? 0 : static_cast<double>(RowPool::kBatches) * all_slots;
  memory.add("data", 4 * (2 * (2 * slots + pool) * S + 2 * static_cast<double>(in.train_examples) * S),
             in.train_examples > 0 ? "rows, and the table of the training set" : "rows");

  const PuzzleSizes sizes = puzzle_sizes(in, dims_, micro);
  StepWalk walk(c.model, sizes, has_second_forward(c.model));
  const Ledger ledger = walk.run();
  const BlockPasses passes = block_passes(c.model, has_second_forward(c.model));
  const double gathered = gathered_bytes(in, dims_);  // when nothing is left of the activations
  if (gathered > ledger.peak()) {
    memory.add("gathered rows", gathered, "of the puzzle embedding, from all ranks");
    memory.moment = "update of the puzzle embedding";
  } else {
    memory.add("activations kept", ledger.kept_at_peak(),
               cat("for the backward pass of ", passes.recorded, " of ", passes.plain + passes.recorded,
                   " layer passes", c.model.recompute ? ", whose updates keep their inputs alone" : ""));
    memory.add("temporaries", ledger.peak() - ledger.kept_at_peak(), "at the peak");
    memory.moment = ledger.peak_moment();
  }
}

}  // namespace hrm::tasks
