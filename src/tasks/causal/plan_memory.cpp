// A training step of a causal model as the allocator sees it.
#include <algorithm>
#include <string>
#include <vector>

#include "hrm/base/error.h"
#include "hrm/nn/fp8_linears.h"
#include "hrm/tasks/generation.h"
#include "tasks/causal/plan.h"

namespace hrm::tasks {
namespace {

constexpr double kWide = 4;  // bytes of what is computed in float32 whatever the compute dtype is

// Bytes of one block over all tokens of a pass.
struct CausalBlockMemory {
  double mixing = 0, feed_forward = 0;                    // kept by the two parts
  double output = 0;                                      // kept by what follows
  double backward_mixing = 0, backward_feed_forward = 0;  // gradients beside those of input and output
  double total() const { return mixing + feed_forward + output; }
};

// nn/transformer_block.cpp, nn/causal_attention.cpp, nn/feed_forward.cpp and nn/lora.cpp.
class CausalBlock {
 public:
  CausalBlock(const PlanInput& in, const CausalPass& pass)
      : in_(in), model_(causal_plan(in)), facts_(model_.facts()), pass_(pass), size_(element_size(in.config)) {}

  // `begun`: whether what the block reads needs a gradient. Nothing is kept in front of the first layer that is
  // trained.
  CausalBlockMemory memory(const PlannedLayer& layer, bool begun) const {
    // Of a part of the model, norms and what is between blocks have this part's rows. Products read all rows.
    const double own = 1 / number(model_.parts());
    const double n = pass_.tokens, unit = n * number(facts_.hidden_size) * size_, rstd = own * n * kWide;
    const double act = n * layer.down.in * size_, stream = own * unit;
    const bool behind = facts_.form.norms_behind;
    CausalBlockMemory m;
    if (layer.in_8_bits()) return in_8_bits(layer);
    if (begun || layer.qkv.keeps_input()) {
      // The layer's input or, with norms behind, its result.
      m.mixing = (behind || layer.qkv.keeps_input() ? unit : 0) + (begun || behind ? rstd : 0) + stream +
                 attention(layer) + of(layer.qkv) + of(layer.o);
      if (behind && !begun) m.mixing += unit;  // the input itself
    } else if (layer.o.keeps_input()) {
      m.mixing = n * layer.o.in * size_ + of(layer.o) + stream + (behind ? unit + rstd : 0);
    }
    if (layer.has_experts()) {
      const bool needed = begun || layer.qkv.keeps_input() || layer.o.keeps_input();
      if (needed || layer.trains()) {
        m.feed_forward =
            experts(layer) + (needed ? rstd : 0) + (layer.router.trained ? unit : 0) + (behind ? unit + rstd : 0);
      }
    } else if (begun || layer.qkv.keeps_input() || layer.o.keeps_input()) {
      const bool kept = behind || layer.gate_up.keeps_input() || !general(layer);
      m.feed_forward = (kept ? unit : 0) + rstd + gated(layer) + of(layer.gate_up) + of(layer.down);
    } else if (layer.gate_up.keeps_input()) {
      m.feed_forward = unit + gated(layer) + of(layer.gate_up) + of(layer.down) + (behind ? unit + rstd : 0);
    } else if (layer.down.keeps_input()) {
      m.feed_forward = act + of(layer.down) + (behind ? unit + rstd : 0);
    }
    m.output = begun || layer.trains() ? stream : 0;
    // A part gathers gradients of all rows beside its products, and sends sums of all rows; not with adapters.
    const double travelling = model_.parts() > 1 && in_.config.lora.r == 0 ? 2 * unit : 0;
    m.backward_mixing = attention_backward() + n * layer.qkv.targets * rank() * size_ + travelling;
    m.backward_feed_forward = 2 * act + std::max(is_fused(layer) ? 0 : act, unit) + travelling;
    if (layer.has_experts()) m.backward_feed_forward = unit + experts_backward(layer);
    return m;
  }

  // Temporaries of a pass that is not recorded, without the residual stream.
  double plain(const PlannedLayer& layer) const {
    const double n = pass_.tokens, unit = n * number(facts_.hidden_size) * size_;
    const double rows = layer.has_experts() ? model_.expert_rows(n) : n;
    const double of_rows = layer.has_experts() ? 2 * rows * number(facts_.hidden_size) * size_ : 0;
    const double cast = layer.in_8_bits() && !in_.fp8_copies ? size_ * number(in_.largest_fp8) : 0;
    return cast + unit +
           std::max(3 * rows * layer.down.in * size_ + of_rows,
                    (pass_.shared ? 2 : 1) * n * layer.qkv.out * size_ + n * layer.o.in * size_);
  }

 private:
  // nn/fp8_block.cpp and ops/quantized/fp8_linear.cpp: of what a product in 8 bits reads, one byte of each value is
  // kept, or none where the backward pass computes it again. All weights are trained.
  CausalBlockMemory in_8_bits(const PlannedLayer& layer) const {
    const double n = pass_.tokens, unit = n * number(facts_.hidden_size) * size_, rstd = n * kWide;
    const double act = n * layer.down.in * size_, behind = facts_.form.norms_behind ? unit : 0;
    const auto read = [&](const PlannedLinear& linear) { return n * linear.in * (linear.fp8 ? 1 : size_); };
    const bool fuses = in_.config.precision.fp8_scaling != config::Fp8Scaling::rows && behind == 0;
    const bool fused_qkv = fuses && layer.qkv.fp8 && !facts_.form.wide_qk_norm && !pass_.shared;
    CausalBlockMemory m;
    // With norms behind, products alone read the residual streams: neither the block's input, which the block before
    // counts, nor the one in the middle is kept.
    m.mixing = (fused_qkv ? 0 : read(layer.qkv)) + rstd + attention(layer) + unit + behind;
    if (behind > 0) m.mixing -= (layer.qkv.fp8 ? unit : 0) + (layer.gate_up.fp8 ? unit : 0);
    if (layer.has_experts()) {
      m.feed_forward = experts(layer) + rstd + unit + behind;
      m.backward_feed_forward = unit + experts_backward(layer);
    } else {
      // The fused half computes the activation again.
      const bool fused = fuses && layer.gate_up.fp8 && layer.down.fp8 && !facts_.form.gelu_gate;
      m.feed_forward =
          rstd + behind + (facts_.form.gelu_gate ? 3 : 2) * act + (fused ? 0 : read(layer.gate_up) + read(layer.down));
      // Gradients of the activation, and of its result and of gates and ups in 8 bits, twice each; or, later, also of
      // what gate_up read, beside a transposed weight.
      const double eights = 2 * n * (number(facts_.hidden_size) + 3 * layer.down.in);
      m.backward_feed_forward = std::max(act, layer.gate_up.in * layer.gate_up.out) + unit + eights;
    }
    m.output = unit;
    m.backward_mixing = attention_backward();
    return m;
  }

  double rank() const { return number(in_.config.lora.r); }

  // What an adapter keeps besides its input.
  double of(const PlannedLinear& layer) const {
    if (layer.targets == 0) return 0;
    const double values = layer.targets * rank() + (in_.config.lora.dora ? layer.adapted : 0);
    return pass_.tokens * values * size_;
  }

  // ops/moe/moe_autograd.cpp and nn/moe_lora.cpp: scores, weights, the plan; of each row what goes in, gates and ups,
  // what is between, the result, and what adapters keep.
  double experts(const PlannedLayer& layer) const {
    const double rows = model_.expert_rows(pass_.tokens), wide = number(facts_.hidden_size);
    const double adapters = (layer.gate_up.targets + layer.down.targets) * rank();
    return pass_.tokens * kWide * (layer.router.out + 3 * number(facts_.experts.top_k)) +
           rows * ((2 * wide + 3 * layer.down.in + adapters) * size_ + kWide);
  }
  // Gradients of the rows' results, of gates and ups, and of what goes in or what is between.
  double experts_backward(const PlannedLayer& layer) const {
    const double rows = model_.expert_rows(pass_.tokens), wide = number(facts_.hidden_size), act = layer.down.in;
    return rows * (wide + 2 * act + std::max(wide, is_fused(layer) ? 0 : act)) * size_;
  }

  double attention(const PlannedLayer& layer) const {
    const double n = pass_.tokens, places = pass_.places();
    const double q = number(facts_.heads * facts_.head_dim), kv = number(facts_.kv_heads * facts_.head_dim);
    double kept = places * (layer.qkv.out + q) * size_ + places * kWide * number(facts_.heads);
    // The values before the norms of q and k.
    if (facts_.qk_norm) kept += places * (q + kv) * size_;
    if (facts_.form.wide_qk_norm) kept += n * ((q + kv) * size_ + 2 * kWide);
    // What o_proj reads, where that is a tensor of its own.
    const bool dropped = in_.config.lora.dora && in_.config.lora.dropout > 0 && layer.o.targets > 0;
    if (layer.o.fp8) {
      const bool again = in_.config.precision.fp8_scaling != config::Fp8Scaling::rows && !pass_.shared &&
                         layer.o.in * layer.o.out >= number(nn::kFp8WideWeight);
      kept += again ? 0 : n * q;
    } else if (dropped || (pass_.shared && layer.o.keeps_input())) {
      kept += n * q * size_;
    }
    return kept;
  }

  // Gradients of q, k and v, of their product, and a float32 sum of that of q.
  double attention_backward() const {
    const double q = number(facts_.heads * facts_.head_dim), kv = number(facts_.kv_heads * facts_.head_dim);
    return pass_.places() * (size_ * (q + 2 * (q + 2 * kv)) + kWide * q);
  }

  bool general(const PlannedLayer& layer) const {
    return facts_.form.gelu_gate || model_.quantized_values() > 0 || layer.gate_up.targets > 0 ||
           layer.down.targets > 0;
  }
  bool is_fused(const PlannedLayer& layer) const {
    return size_ < kWide && in_.gpu.capability == 90 && !general(layer);
  }

  double gated(const PlannedLayer& layer) const {
    const double act = pass_.tokens * layer.down.in * size_;
    if (!general(layer)) return 3 * act;
    return (2 + (facts_.form.gelu_gate ? 1 : 0) + (layer.down.keeps_input() ? 1 : 0)) * act;
  }

  const PlanInput& in_;
  const CausalPlan& model_;
  const HfModelConfig& facts_;
  const CausalPass& pass_;
  double size_;
};

// Walks through one micro-batch (tasks/causal/polychromic_loss.cpp).
class CausalWalk {
 public:
  explicit CausalWalk(const PlanInput& in)
      : in_(in),
        model_(causal_plan(in)),
        size_(element_size(in.config)),
        width_(number(model_.facts().hidden_size)),
        vocabulary_(number(model_.facts().vocab_size)) {}

  // `together`: one backward pass goes through all of them.
  void run(const std::vector<CausalPass>& passes, bool together) {
    for (const CausalPass& pass : passes) {
      if (!pass.recorded) {
        plain(pass);
        continue;
      }
      forward(pass);
      loss(pass);
      if (!together) backward();
    }
    if (together) backward();
  }

  // Completions: prompts are read, then decoded token by token.
  void sample(double prompts, double prompt, double rows) {
    ledger_.moment = "prefill";
    CausalPass pass{.tokens = prompts * prompt, .rows = prompts, .length = prompt, .recorded = false};
    const HfModelConfig& f = model_.facts();
    const double fresh = pass.tokens * number(2 * f.layers * f.kv_heads * f.head_dim) * size_;
    ledger_.take(fresh);
    plain(pass, "prefill");
    ledger_.give(fresh);
    ledger_.moment = "decode";
    const double logits = rows * vocabulary_ * (size_ + kWide);
    ledger_.take(logits);
    ledger_.give(logits);
  }

  const Ledger& ledger() const { return ledger_; }
  double kept() const { return most_kept_; }
  int64_t recorded() const { return recorded_; }

 private:
  void keep(double bytes) {
    ledger_.kept += bytes;
    ledger_.take(bytes);
  }

  void forward(const CausalPass& pass) {
    ledger_.moment = "forward pass";
    const double own = 1 / number(model_.parts()), unit = own * pass.tokens * width_ * size_;
    const bool again = in_.config.hf.recompute;
    bool begun = model_.trains_embedding();
    const double first = (begun || again ? unit : 0) + spans(pass);  // of the embedding
    keep(first);
    kept_.push_back({.mixing = first});
    const CausalBlock of(in_, pass);
    for (const PlannedLayer& layer : model_.layers()) {
      const CausalBlockMemory block = of.memory(layer, begun || again);
      begun = begun || layer.trains();
      if (again) {
        ledger_.take(block.total());
        ledger_.give(block.total() - block.output);
        ledger_.kept += block.output;
      } else {
        keep(block.total());
      }
      kept_.push_back(block);
    }
    recorded_ += number_of_layers();
    const double norm = own * pass.tokens * kWide;
    keep(norm);
    kept_.push_back({.mixing = norm});
  }

  // Where the documents of packed rows begin, for all blocks.
  double spans(const CausalPass& pass) const {
    const bool documents = in_.config.chat.packing && pass.loss != CausalPass::Loss::answers;
    return documents ? pass.rows * pass.length * sizeof(int32_t) : 0;
  }

  // objectives/chunked_cross_entropy.cpp and token_log_probs.cpp. Gradients of hidden states live until the backward
  // pass has used them; those of the head until the step ends.
  void loss(const CausalPass& pass) {
    ledger_.moment = "loss";
    const double hidden = pass.tokens * width_ * size_;  // the norm's result
    keep_hidden(hidden);
    const auto part = [&](double labels, bool gathered) {
      if (labels == 0) return;
      const double of_labels = labels * width_ * size_;
      if (gathered) hold(of_labels);  // labelled states of their own
      hold(of_labels);                // their gradient
      if (model_.trains_head()) hold(kWide * vocabulary_ * width_);
      const double logits = std::min(labels, number(in_.config.objective.chunk)) * vocabulary_ * size_;
      ledger_.take(logits);
      ledger_.give(logits);
    };
    part(pass.response_labels, false);
    part(pass.answer_labels, pass.shared);
    most_kept_ = std::max(most_kept_, ledger_.kept);
    release_hidden();
  }

  void keep_hidden(double bytes) {
    hidden_ += bytes;
    ledger_.take(bytes);
  }
  void release_hidden() {
    ledger_.give(hidden_);
    hidden_ = 0;
  }
  void hold(double bytes) {
    held_ += bytes;
    ledger_.take(bytes);
  }

  void backward() {
    ledger_.moment = "backward pass";
    double stream = 0;  // the gradient that continues
    for (const CausalBlockMemory& block : kept_) stream = std::max(stream, block.output);
    ledger_.take(stream);
    while (!kept_.empty()) {
      const CausalBlockMemory block = kept_.back();
      kept_.pop_back();
      ledger_.give(block.output);
      if (in_.config.hf.recompute && block.feed_forward > 0) ledger_.take(block.mixing + block.feed_forward);
      ledger_.take(block.backward_feed_forward);
      ledger_.give(block.backward_feed_forward + block.feed_forward);
      ledger_.take(block.backward_mixing);
      ledger_.give(block.backward_mixing + block.mixing);
    }
    ledger_.give(stream + held_);
    held_ = 0;
    ledger_.kept = 0;
  }

  void plain(const CausalPass& pass, const char* moment = "reference") {
    ledger_.moment = moment;
    const double unit = pass.tokens * width_ * size_;
    const CausalBlock of(in_, pass);
    double most = 0;
    for (const PlannedLayer& layer : model_.layers()) most = std::max(most, of.plain(layer) + unit);
    const double logits = std::min(pass.answer_labels, number(in_.config.objective.chunk)) * vocabulary_ * size_;
    most = std::max(most, logits + unit);
    ledger_.take(unit + most);
    ledger_.give(unit + most);
  }

  int64_t number_of_layers() const { return static_cast<int64_t>(model_.layers().size()); }

  const PlanInput& in_;
  const CausalPlan& model_;
  double size_, width_, vocabulary_;
  Ledger ledger_;
  std::vector<CausalBlockMemory> kept_;
  double hidden_ = 0, held_ = 0, most_kept_ = 0;
  int64_t recorded_ = 0;
};

}  // namespace

void CausalPlan::add_memory(const PlanInput& in, int64_t micro, PlannedMemory& memory) const {
  if (in.config.parallel.tensor > parts_) {
    PlanInput of_part = in;
    of_part.model = part(in.config.parallel.tensor);
    return of_part.model->add_memory(of_part, micro, memory);
  }
  config::Config config = in.config;
  config.train.micro_batch_size = micro;
  const PolychromicPlan plan(config, in.data_ranks());
  const double size = element_size(config);
  const double before = [&] {
    double sum = 0;
    for (const PlanItem& item : memory.items) sum += item.value;
    return sum;
  }();

  const double T = number(plan.padded(positions_)), room = number(cache_positions_);
  memory.add("positions", kWide * room * number(facts_.head_dim), "sines and cosines, fp32");
  memory.add("dequantised layer", size * largest_quantized_, "a workspace that quantised layers share");
  if (multiplies_frozen_in_8_bits(in) && config.hf.fp8_transposed) {
    memory.add("transposed weights", quantized_values_, "of the quantised layers, for the backward pass");
  }
  const double answers = number(plan.most_samples());
  double data = number(plan.rows) * T * (config.chat.packing ? 20 : 16) + answers * room * 20;
  if (config.polychromic.share_prompts != config::SharedPrompts::off &&
      plan.learns_from_answers(PolychromicKind::rewards)) {
    data += 48 * answers * room;  // tables of tokens that rows share
  }
  memory.add("data", data, "ids, labels and weights of responses and completions");
  double rows = 0;
  if (answers > 0) {
    const int64_t most = config.polychromic.generation_batch > 0 ? config.polychromic.generation_batch : 256;
    rows = number(std::min(most, generation_bucket(plan.most_samples())));
    memory.add("merged weights", size * merged_values_, "a copy with the adapter, for sampling");
    const int64_t places = facts_.window > 0 ? std::min(facts_.window, cache_positions_) : cache_positions_;
    memory.add("keys and values", rows * number(places * 2 * facts_.layers * facts_.kv_heads * facts_.head_dim) * size,
               cat("a cache of ", rows, " rows of ", places, " positions"));
    const bool half = config.precision.compute == config::ComputePrecision::fp16;
    memory.add("sentence encoder", (half ? kWide : size) * encoder_.parameters, "its weights");
  }

  Ledger most;
  double kept = 0;
  int64_t recorded = 0;
  const auto walk = [&](PolychromicKind kind) {
    CausalWalk steps(in);
    if (kind != PolychromicKind::responses) {
      const double prompts = number(plan.micro_batches * plan.prompts(kind));
      const double of_rows = std::max(1.0, rows / number(plan.samples(kind)));
      steps.sample(std::min(prompts, of_rows), number(prompts_.longest), rows);
    }
    const bool together = in.data_ranks() > 1;
    steps.run(causal_passes(in, kind, micro, prompts_.longest), together);
    if (steps.ledger().peak() < most.peak()) return;
    most = steps.ledger();
    kept = steps.kept();
    recorded = steps.recorded();
  };
  // All kinds that the run has, however seldom.
  if (plan.grpo_from != 1) walk(PolychromicKind::responses);
  if (plan.samples_for_diversity) walk(PolychromicKind::diversity);
  if (plan.grpo_from > 0) walk(PolychromicKind::rewards);
  memory.add("activations kept", kept,
             cat("for the backward pass of ", recorded, " layer passes",
                 config.hf.recompute ? ", which keep their inputs alone" : ""));
  memory.add("temporaries", most.peak() - kept, "at the peak");
  memory.moment = most.peak_moment();

  // Weights are read in fp32 before those that are frozen get the compute dtype, one after the other; not experts.
  double needed = -before;
  for (const PlanItem& item : memory.items) needed += item.value;
  const double masters = kWide * (number(in.parameters + in.frozen_parameters) - quantized_values_ - frozen_experts_) +
                         size * frozen_experts_;
  const double loading = masters + quantized_bytes_ + size * largest_frozen_;
  if (in.frozen_parameters > 0 && loading > before + needed) {
    memory.add("loading", loading - before - needed, "weights in fp32, before frozen ones get the compute dtype");
    memory.moment = "loading";
  }
}

}  // namespace hrm::tasks
