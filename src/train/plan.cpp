#include "plan.h"

#include <algorithm>
#include <cmath>

#include "hrm/base/error.h"
#include "hrm/nn/block.h"
#include "hrm/nn/parameter.h"
#include "hrm/nn/swiglu.h"
#include "hrm/runtime/precision.h"
#include "hrm/tasks/row_pool.h"
#include "hrm/train/batch_split.h"
#include "train/plan_optimizer.h"
#include "train/plan_ranks.h"

namespace hrm::train {
namespace {

// Measured on one H200 with `bench step`; see docs/profiling.md.
constexpr double kMatmulShare = 0.62;         // of the data sheet's FLOP/s in a step's matrix products
constexpr double kAttentionShare = 0.13;      // the same for sequences of about a hundred positions
constexpr double kLongAttentionShare = 0.35;  // and for long ones
constexpr double kMemoryShare = 0.75;         // of the data sheet's bytes per second
constexpr double kStepOverheadMs = 0.5;       // starts of kernels, losses, metrics
constexpr double kWorkspaces = 64 << 20;      // of cuBLAS, taken through the allocator
constexpr double kReservedShare = 1.03;       // reserved by tensors at the peak, expandable segments
constexpr double kContext = 800.0 * (1 << 20);
constexpr int64_t kShortSequence = 128;  // longest that our attention kernel takes

// Bytes held at a moment of the step, and the moment at which they were most.
class Ledger {
 public:
  void take(double bytes) {
    now_ += bytes;
    if (now_ <= peak_) return;
    peak_ = now_;
    moment_ = moment;
    kept_at_peak_ = kept;
  }
  void give(double bytes) { now_ -= bytes; }

  std::string moment;  // what is going on, to be set by the walk
  double kept = 0;     // of what is held: activations that the backward pass needs

  double peak() const { return peak_; }
  double kept_at_peak() const { return kept_at_peak_; }
  const std::string& peak_moment() const { return moment_; }

 private:
  double now_ = 0, peak_ = 0, kept_at_peak_ = 0;
  std::string moment_;
};

// Sizes of one micro-batch.
struct Sizes {
  double unit = 0;     // bytes of (B, L, D) in the compute dtype
  double rows = 0;     // B * L
  double gate_up = 0;  // bytes of (B, L, 2 F)
  double logits = 0;
  double rstd = 0;         // bytes of a float32 per row
  double lse = 0;          // bytes of a float32 per head and row
  double column_rstd = 0;  // bytes of a float32 per sample and channel
  bool mixes_by_mlp = false;
  bool short_attention = false;  // our attention kernel, with rotation inside
  bool fused_gate = false;       // the gate in the product's epilogue: gate_up is written only where it is needed
  bool fused_norm = false;       // residual and norm in the product's epilogue
  bool fp8 = false;              // recursions multiply in 8 bits; a tensor in e4m3 has half the bytes
  bool fused_gate8 = false;      // as fused_gate, for the products in 8 bits
};

// Walks through one step of the fused implementation (nn/sub_blocks.cpp, models/*.cpp) as the allocator sees it.
class StepWalk {
 public:
  StepWalk(const config::ModelConfig& model, const Sizes& sizes, bool second_forward)
      : m_(model), s_(sizes), second_forward_(second_forward) {}

  // Returns the ledger after forward, Q target and backward of one micro-batch.
  Ledger run() {
    if (m_.arch == "hrm") {
      hrm_forward();
    } else if (m_.arch == "trm") {
      trm_forward();
    } else {
      ledger_.moment = "forward pass";
      embed();
      level_forward(m_.L_layers, "forward pass");
      ledger_.give(s_.unit);  // the embedded input
    }
    ledger_.moment = "loss";
    ledger_.take(s_.logits);
    if (second_forward_) q_target();
    ledger_.moment = "loss";
    ledger_.take(s_.logits);  // its gradient
    ledger_.take(s_.unit);    // of the last state
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

  // The recursions of one segment that are not recorded; the states that it leaves are held.
  void hrm_recursions(bool& own_H, bool& own_L) {
    for (int64_t h = 0; h < m_.H_cycles; ++h) {
      const bool last = h + 1 == m_.H_cycles;
      ledger_.take(s_.unit);  // injection
      for (int64_t l = 0; l < m_.L_cycles - (last ? 1 : 0); ++l) {
        level_plain(m_.L_layers, true);
        if (own_L) ledger_.give(s_.unit);
        own_L = true;
      }
      if (!last) {
        level_plain(m_.H_layers, true);
        if (own_H) ledger_.give(s_.unit);
        own_H = true;
      }
      ledger_.give(s_.unit);
    }
  }

  void hrm_forward() {
    bool own_H = false, own_L = false;  // the states at the start are the carry
    ledger_.moment = "recursions";
    embed();
    hrm_recursions(own_H, own_L);
    ledger_.take(s_.unit);  // injection of the last L call
    level_forward(m_.L_layers, "recorded forward pass");
    ledger_.give(s_.unit);
    if (own_L) ledger_.give(s_.unit);
    level_forward(m_.H_layers, "recorded forward pass");
    if (own_H) ledger_.give(s_.unit);
    ledger_.give(s_.unit);  // the embedded input
  }

  void trm_forward() {
    bool own_H = false, own_L = false;
    ledger_.moment = "recursions";
    embed();
    for (int64_t h = 0; h + 1 < m_.H_cycles; ++h) trm_cycle(own_H, own_L, true);
    ledger_.take(s_.unit);  // injection
    for (int64_t l = 0; l <= m_.L_cycles; ++l) {
      level_forward(m_.L_layers, "recorded forward pass");
      bool& own = l < m_.L_cycles ? own_L : own_H;
      if (own) ledger_.give(s_.unit);
      own = false;  // what replaces it is kept for the backward pass anyway
    }
    ledger_.give(2 * s_.unit);  // injection, embedded input
  }

  void trm_cycle(bool& own_H, bool& own_L, bool recursion) {
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
    if (m_.arch == "hrm") {
      hrm_recursions(own_H, own_L);
      ledger_.take(s_.unit);
      level_plain(m_.L_layers, true);
      ledger_.give(s_.unit);
      if (own_L) ledger_.give(s_.unit);
      own_L = true;
      level_plain(m_.H_layers, true, 1);
      ledger_.give(s_.unit);
    } else if (m_.arch == "trm") {
      for (int64_t h = 0; h < m_.H_cycles; ++h) trm_cycle(own_H, own_L, h + 1 < m_.H_cycles);
    } else {
      level_plain(m_.L_layers, false);
      own_H = true;
    }
    ledger_.give(s_.unit * (1 + (own_H ? 1 : 0) + (own_L ? 1 : 0)));
  }

  // The gradient of the last state is held.
  void backward() {
    ledger_.moment = "backward pass";
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
  const Sizes& s_;
  bool second_forward_;
  Ledger ledger_;
  std::vector<Kept> kept_layers_;
};

struct Passes {
  double plain = 0, recorded = 0;  // blocks of one step, forward
  double recursions = 0;           // of the plain ones, those that fp8 is for
};

Passes block_passes(const config::ModelConfig& m, bool second_forward) {
  const auto d = [](int64_t n) { return static_cast<double>(n); };
  double all = 0, recorded = 0;
  if (m.arch == "hrm") {
    all = d(m.H_cycles) * (d(m.L_cycles) * d(m.L_layers) + d(m.H_layers));
    recorded = d(m.L_layers + m.H_layers);
  } else if (m.arch == "trm") {
    all = d(m.H_cycles) * d(m.L_cycles + 1) * d(m.L_layers);
    recorded = d(m.L_cycles + 1) * d(m.L_layers);
  } else {
    all = recorded = d(m.L_layers);
  }
  // HRM's Q target takes them up to its last block.
  const double of_target = m.arch == "hrm" ? all - 1 : all - recorded;
  return {all - recorded + (second_forward ? all : 0), recorded, all - recorded + (second_forward ? of_target : 0)};
}

bool has_second_forward(const config::ModelConfig& m) {
  return !m.no_ACT_continue && m.halt_max_steps > 1;
}

double element_size(const config::Config& config) {
  const std::string& compute = config.precision.compute;
  return compute == "fp32" || compute == "tf32" ? 4 : 2;
}

Sizes sizes_of(const PlanInput& in, int64_t micro) {
  const config::ModelConfig& m = in.config.model;
  const auto B = static_cast<double>(micro), D = static_cast<double>(m.hidden_size);
  const auto L = static_cast<double>(in.dims.puzzle_emb_len + in.dims.seq_len);
  const auto F = static_cast<double>(nn::swiglu_width(m.hidden_size, m.expansion));
  const double size = element_size(in.config);
  const int64_t head = m.hidden_size / m.num_heads;
  const bool half = size == 2;
  Sizes s;
  s.rows = B * L;
  s.unit = B * L * D * size;
  s.gate_up = B * L * 2 * F * size;
  s.logits = B * L * static_cast<double>(in.dims.vocab_size) * size;
  s.rstd = B * L * 4;
  s.lse = B * L * static_cast<double>(m.num_heads) * 4;
  s.column_rstd = B * D * 4;
  s.mixes_by_mlp = m.mlp_t;
  s.short_attention = half && (head == 64 || head == 32) && L <= kShortSequence && in.config.ops.attention == "auto";
  // The sizes that our kernels take (ops/cuda/sm90); F is a multiple of 256.
  const bool hopper = half && in.gpu.capability == 90;
  s.fused_gate = hopper && m.hidden_size % 64 == 0;
  s.fused_gate8 = hopper;
  s.fused_norm = hopper && (m.hidden_size == 256 || m.hidden_size == 512);
  s.fp8 = in.config.precision.recursions == "fp8";
  return s;
}

// Gradients and identifiers of the puzzle embedding's rows, of the slots of all ranks.
double gathered_bytes(const PlanInput& in) {
  if (in.ranks == 1 || in.dims.puzzle_emb_ndim == 0) return 0;
  return 4 * static_cast<double>((in.dims.puzzle_emb_ndim + 1) * in.config.train.global_batch_size);
}

struct Memory {
  std::vector<PlanItem> items;
  double peak = 0;
  std::string moment;
};

Memory memory_of(const PlanInput& in, int64_t micro) {
  const config::Config& c = in.config;
  const auto n = static_cast<double>(in.parameters);
  const double size = element_size(c);
  const auto all_slots = static_cast<double>(c.train.global_batch_size);
  const double slots = all_slots / static_cast<double>(in.ranks);
  const auto D = static_cast<double>(c.model.hidden_size), S = static_cast<double>(in.dims.seq_len);
  const double L = static_cast<double>(in.dims.puzzle_emb_len) + S;
  const auto embedding = static_cast<double>(in.dims.puzzle_emb_ndim);
  Memory memory;
  const auto add = [&](std::string name, double bytes, std::string note) {
    if (bytes > 0) memory.items.push_back({std::move(name), bytes, std::move(note)});
  };
  add("weights", 4 * n, cat(in.parameters, " values in fp32"));
  if (size < 4) add("compute copies", size * static_cast<double>(in.copied_parameters), "what the products read");
  if (c.precision.recursions == "fp8") {
    add("e4m3 copies", static_cast<double>(in.fp8_parameters), "what the products of the recursions read");
  }
  const PlannedOptimizer optimizer = planned_optimizer(in);
  if (in.ranks > 1 && c.parallel.zero > 0) {
    const auto ranks = static_cast<double>(in.ranks);
    add("gradients", static_cast<double>(rehearsed_gradient_bytes(in)),
        "what travels and this rank's share, fp32 sums");
    add("optimizer", optimizer.state / ranks, "this rank's share of " + optimizer.note);
    if (c.optim.ema > 0) add("moving average", 4 * n / ranks, "this rank's share, fp32");
  } else {
    add("gradients", 4 * n, "fp32");
    if (in.ranks > 1 && c.parallel.reduce == "bf16") add("sent gradients", 2 * n, "what travels in bf16");
    add("optimizer", optimizer.state, optimizer.note);
    add("optimizer's buffers", optimizer.buffers, "of Muon's iteration over a stack of matrices");
    if (c.optim.ema > 0) add("moving average", 4 * n, "fp32");
  }
  if (embedding > 0) {
    add("puzzle embedding", 4 * embedding * (static_cast<double>(in.dims.num_puzzle_identifiers) + 2 * slots),
        "table, rows of the batch and their gradients, fp32");
  }
  add("carry", 2 * slots * L * D * size, "z_H and z_L of every slot");
  // Rows of the slots, of the next batch and of the pool for the slots of all ranks; the table that they are drawn
  // from.
  const double pool = c.data.reference_semantics ? 0 : static_cast<double>(tasks::RowPool::kBatches) * all_slots;
  add("data", 4 * (2 * (2 * slots + pool) * S + 2 * static_cast<double>(in.train_examples) * S),
      in.train_examples > 0 ? "rows, and the table of the training set" : "rows");

  const Sizes sizes = sizes_of(in, micro);
  StepWalk walk(c.model, sizes, has_second_forward(c.model));
  const Ledger ledger = walk.run();
  const Passes passes = block_passes(c.model, has_second_forward(c.model));
  const double gathered = gathered_bytes(in);  // when nothing is left of the activations
  if (gathered > ledger.peak()) {
    add("gathered rows", gathered, "of the puzzle embedding, from all ranks");
    memory.moment = "update of the puzzle embedding";
  } else {
    add("activations kept", ledger.kept_at_peak(),
        cat("for the backward pass of ", passes.recorded, " of ", passes.plain + passes.recorded, " layer passes"));
    add("temporaries", ledger.peak() - ledger.kept_at_peak(), "at the peak");
    memory.moment = ledger.peak_moment();
  }
  add("workspaces", kWorkspaces, "cuBLAS");
  for (const PlanItem& item : memory.items) memory.peak += item.value;
  return memory;
}

double in_use(double tensors) {
  return tensors * kReservedShare + kContext;
}

int64_t fitting_micro_batch(const PlanInput& in) {
  const int64_t own = in.config.train.global_batch_size / in.ranks;
  for (int64_t parts = 1; parts <= own; ++parts) {
    if (own % parts == 0 && in_use(memory_of(in, own / parts).peak) <= in.gpu.memory_bytes) return own / parts;
  }
  return 0;
}

// Times by the slower of computing and moving, product by product.
class Clock {
 public:
  explicit Clock(const GpuFacts& gpu) : gpu_(gpu) {}
  double product(double rows, double in, double out, double moved_bytes) const {
    return slower(2 * rows * in * out, kMatmulShare, moved_bytes);
  }
  double slower(double flops, double share, double bytes) const {
    return 1e3 * std::max(flops / (share * gpu_.flops), bytes / (kMemoryShare * gpu_.bytes_per_s));
  }
  double moved(double bytes) const { return 1e3 * bytes / (kMemoryShare * gpu_.bytes_per_s); }

 private:
  const GpuFacts& gpu_;
};

void add_times(const PlanInput& in, Plan& plan) {
  const config::ModelConfig& m = in.config.model;
  const Sizes s = sizes_of(in, in.config.train.global_batch_size / in.ranks);  // micro-batches add up to it
  const Clock clock(in.gpu);
  const double fp32 = element_size(in.config) == 4 ? (in.config.precision.compute == "tf32" ? 2 : 16) : 1;
  const auto D = static_cast<double>(m.hidden_size), L = static_cast<double>(in.dims.puzzle_emb_len + in.dims.seq_len);
  const double F = s.gate_up / s.unit * D / 2, act = s.gate_up / 2;
  const Passes passes = block_passes(m, has_second_forward(m));

  double products = clock.product(s.rows, D, 2 * F, s.unit + act) + clock.product(s.rows, F, D, act + 2 * s.unit);
  double mixing = 0;
  if (s.mixes_by_mlp) {
    const auto F_t = static_cast<double>(nn::swiglu_width(static_cast<int64_t>(L), m.expansion));
    mixing = clock.product(s.rows / L * D, L, 3 * F_t, 2 * s.unit) * 1.5;
  } else {
    products += clock.product(s.rows, D, 3 * D, 4 * s.unit) + clock.product(s.rows, D, D, 3 * s.unit);
    const double share = s.short_attention ? kAttentionShare : kLongAttentionShare;
    mixing = clock.slower(4 * s.rows * L * D, share, 4 * s.unit);
  }
  const double forwards = passes.plain + passes.recorded;
  // Operands of 8 bits: twice the operations a second, and half the bytes of what is read and of what the next reads.
  const double recursions = s.fp8 ? passes.recursions : 0;
  double products8 =
      clock.product(s.rows, D, F, (s.unit + act) / 2) + clock.product(s.rows, F / 2, D, act / 2 + 2.5 * s.unit);
  if (!s.mixes_by_mlp) {
    products8 += clock.product(s.rows, D / 2, 3 * D, 3.5 * s.unit) + clock.product(s.rows, D / 2, D, 3 * s.unit);
  }
  // Backward: two products for each, and the gradients of norms and gates pass through memory.
  const double norms = clock.moved(6 * s.unit + 3 * s.gate_up);
  plan.time.push_back(
      {"matrix products", fp32 * products * (forwards - recursions + 2 * passes.recorded) + products8 * recursions,
       cat(forwards, " layer passes forward", recursions > 0 ? cat(", ", recursions, " of them in fp8") : "", ", ",
           passes.recorded, " backward")});
  plan.time.push_back(
      {s.mixes_by_mlp ? "mixing of positions" : "attention", fp32 * mixing * (forwards + 2.5 * passes.recorded), ""});
  // What is not inside a product passes through memory between two kernels: the product before a norm, gate_up, and in
  // fp8 also what is quantised.
  const double normed = s.fused_norm ? 0 : clock.moved((s.mixes_by_mlp ? 1 : 2) * s.unit);
  const double gates = clock.moved(s.gate_up) *
                       ((s.fused_gate ? 0 : 1.5) * (forwards - recursions) + (s.fused_gate8 ? 0 : 2.5) * recursions);
  plan.time.push_back({"norms, gates", norms * passes.recorded + normed * (2 * forwards + recursions) + gates,
                       "what is not inside a product"});
  const PlannedOptimizer optimizer = planned_optimizer(in);
  plan.time.push_back({"optimizer", clock.moved(optimizer.moved), "one pass over weights, gradients and moments"});
  if (optimizer.products > 0) {
    const double exact = optimizer.exact_products ? 16 : 1;
    plan.time.push_back({"Muon's products",
                         clock.slower(exact * optimizer.products, kMatmulShare, optimizer.products_moved),
                         "five iterations over each matrix"});
  }
  if (const double gathered = gathered_bytes(in); gathered > 0) {
    plan.time.push_back({"embedding rows", clock.moved(2 * gathered), "of all ranks, written and summed"});
  }
  plan.time.push_back({"everything else", kStepOverheadMs, "embedding, loss, ACT state, starts of kernels"});
  for (const PlanItem& item : plan.time) plan.step_ms += item.value;
  plan.backward_ms = (fp32 * (2 * products + 2.5 * mixing) + norms) * passes.recorded;
}

}  // namespace

const std::vector<GpuFacts>& known_gpus() {
  static const std::vector<GpuFacts> gpus{
      {"H200", 989e12, 4.8e12, 150.7e9, 90, 450e9, true},     {"H100 PCIe", 756e12, 2.0e12, 85.0e9, 90, 64e9, false},
      {"H100 NVL", 835e12, 3.9e12, 100.0e9, 90, 64e9, false}, {"H100", 989e12, 3.35e12, 85.0e9, 90, 450e9, true},
      {"B200", 2250e12, 8.0e12, 191.0e9, 100, 900e9, true},   {"A100", 312e12, 2.0e12, 85.0e9, 80, 300e9, true},
      {"L40S", 362e12, 864e9, 47.7e9, 89, 32e9, false},       {"A10G", 70e12, 600e9, 23.7e9, 86, 32e9, false},
      {"L4", 121e12, 300e9, 23.7e9, 89, 32e9, false},         {"RTX 4090", 165e12, 1008e9, 25.3e9, 89, 32e9, false},
  };
  return gpus;
}

PlanInput make_plan_input(const config::Config& config, const models::PuzzleModelDims& dims, const GpuFacts& gpu) {
  PlanInput input{.config = config, .dims = dims, .gpu = gpu};
  const auto model = models::make_puzzle_model_outline(config.model, dims);
  for (const auto& item : model->named_parameters()) {
    input.parameters += item.value().numel();
    add_muon_matrix(input, item.key(), item.value().sizes());
  }
  for (const auto& module : model->modules()) {
    if (const auto* reader = dynamic_cast<const nn::HasComputeWeight*>(module.get())) {
      input.copied_parameters += reader->master_weight().numel();
    }
    if (const auto* level = dynamic_cast<const nn::ReasoningModule*>(module.get())) {
      for (const nn::Linear* weight : nn::fp8_weights(*level)) input.fp8_parameters += weight->weight().numel();
    }
  }
  return input;
}

double backward_done(const config::ModelConfig& model, int64_t groups, int64_t count) {
  // The first uses of all blocks, after which nothing is added to their gradients, come last in a backward pass.
  const double recorded = block_passes(model, false).recorded;
  return groups == 0 ? 0 : (recorded - static_cast<double>(count - groups)) / recorded;
}

Plan make_plan(const PlanInput& in) {
  const std::string no_fp8 = in.config.precision.recursions == "fp8" ? why_no_fp8(in.gpu.capability) : "";
  require(no_fp8.empty(), ExitCode::usage, "precision.recursions is 'fp8', which an ", in.gpu.name,
          " cannot do: ", no_fp8, "; set it to 'same', or choose another GPU by --gpu");
  Memory memory = memory_of(in, split_batch(in.config.train, in.ranks).micro);
  Plan plan;
  plan.memory = std::move(memory.items);
  plan.tensors_peak = memory.peak;
  plan.peak_moment = std::move(memory.moment);
  plan.reserved = plan.tensors_peak * kReservedShare;
  plan.device_used = in_use(plan.tensors_peak);
  plan.fitting_micro_batch = fitting_micro_batch(in);
  add_times(in, plan);
  const auto percent = [](double share) { return cat(std::lround(100 * share), " %"); };
  plan.assumptions = {
      cat("ops.backend=fused on an ", in.gpu.name, " (", in.gpu.flops / 1e12, " TFLOP/s, ", in.gpu.bytes_per_s / 1e12,
          " TB/s, ", std::lround(in.gpu.memory_bytes / 1e9), " GB by its data sheet)"),
      cat("matrix products reach ", percent(kMatmulShare), " of its FLOP/s, attention ", percent(kAttentionShare), " (",
          percent(kLongAttentionShare), " beyond ", kShortSequence, " positions), memory ", percent(kMemoryShare),
          " of its bytes per second"),
      cat("the allocator reserves ", percent(kReservedShare - 1),
          " more than the tensors take; the CUDA context and the "
          "libraries' code ",
          std::lround(kContext / (1 << 20)), " MiB"),
      "evaluation with its own batch, of which the carry and the answers stay until the run ends, and other programs "
      "on the "
      "GPU are not counted",
  };
  return plan;
}

}  // namespace hrm::train
