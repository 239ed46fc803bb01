// Times of a training step of a causal model.
#include <algorithm>
#include <cmath>
#include <string>

#include "hrm/base/text.h"
#include "hrm/ops/weight8.h"
#include "tasks/causal/plan.h"

namespace hrm::tasks {
namespace {

// Decoding, from the whole step with the shape of Qwen3-8B in docs/measurements/log.md: the fraction of the data
// sheet's bytes per second at which weights and cache are read, and the way from one of a layer's five kernels to the
// next.
constexpr double kDecodeShare = 0.65;
constexpr double kDecodeKernels = 5, kDecodeKernelMs = 0.0025;
// Of an encoded answer, with the host's tokenizer, from the same table.
constexpr double kEncodeMs = 0.15;

// Whether what computes a layer's rows in the forward pass, and the gradient in the backward pass, quantises them
// (nn/fp8_rows_block.h).
struct QuantisedBefore {
  bool rows = false, gradient = false;
};

// Time of the passes of a step, each part by the slower of computing and moving.
class CausalClock {
 public:
  CausalClock(const PlanInput& in, const CausalPlan& model)
      : in_(in),
        model_(model),
        clock_(in.gpu),
        size_(element_size(in.config)),
        slowdown_(product_slowdown(in.config)),
        width_(number(model.facts().hidden_size)) {}

  double products = 0, quantising = 0, adapters = 0, attention = 0, others = 0;  // ms
  double backward = 0;                                                           // of them

  void add(const CausalPass& pass, double share) {
    share_ = share;
    const bool again = in_.config.hf.recompute && pass.recorded;
    for (const PlannedLayer& layer : model_.layers()) {
      block(layer, pass, false);
      if (again) block(layer, pass, true, /*as_forward=*/true);
      if (pass.recorded) block(layer, pass, true);
    }
    const double labels = pass.response_labels + pass.answer_labels;
    double head = pass.recorded ? (model_.trains_head() ? 3 : 2) : 1;
    if (pass.logits_twice) ++head;
    const double vocabulary = number(model_.facts().vocab_size);
    product(labels, width_, vocabulary, head, false);
    move(head * labels * vocabulary * size_, 1, false);
  }

  double all() const { return products + quantising + adapters + attention + others; }

 private:
  void note(double& part, double ms, bool is_backward) {
    part += share_ * ms;
    if (is_backward) backward += share_ * ms;
  }
  void product(double rows, double in, double out, double times, bool is_backward, double copies = 1) {
    const double bytes = size_ * (rows * (in + out) + copies * in * out);
    const double flops = 2 * slowdown_ * rows * in * out;
    note(products, times * std::max(kLeastMs, clock_.slower(flops, kProductShare, bytes)), is_backward);
  }
  void move(double bytes, double times, bool is_backward) {
    note(others, times * std::max(kLeastMs, clock_.moved(bytes)), is_backward);
  }

  // A frozen layer whose rows are multiplied in 8 bits. They are quantised where they are computed
  // (`quantised_before`), or by a pass that reads them; the backward pass transposes the weight, unless it is kept so.
  void frozen_in_8_bits(const PlannedLinear& layer, double rows, bool is_backward, bool second, bool quantised_before) {
    const double in = second ? layer.out : layer.in, out = second ? layer.in : layer.out;
    const double bytes = rows * in + in * out + size_ * rows * out;
    note(products, std::max(kLeastMs, clock_.slower(2 * rows * in * out, kFp8Share, bytes)), is_backward);
    const double pass = clock_.moved((quantised_before ? 1 : size_ + 1) * rows * in);
    note(quantising, quantised_before ? pass : std::max(kLeastMs, pass), is_backward);
    if (second && !in_.config.hf.fp8_transposed) {
      note(quantising, std::max(kLeastMs, clock_.moved(2 * in * out)), is_backward);
    }
  }

  // copies: of the weight, each for some of the rows.
  void linear(const PlannedLinear& layer, double rows, bool is_backward, bool as_forward, double copies = 1,
              QuantisedBefore before = {}) {
    const bool second = is_backward && !as_forward;
    const bool in_8_bits = multiplies_frozen_in_8_bits(in_) && rows > number(ops::kWeight8Rows);
    if (in_8_bits) {
      frozen_in_8_bits(layer, rows, is_backward, second, second ? before.gradient : before.rows);
    } else {
      product(rows, layer.in, layer.out, second && layer.trained ? 2 : 1, is_backward, copies);
    }
    if (model_.quantized_values() > 0 && !in_8_bits) {
      const double stored = model_.quantized_bytes() / model_.quantized_values();
      move((stored + size_) * layer.in * layer.out, 1, is_backward);
    }
    if (layer.targets == 0) return;
    // Forward: the input is read, the output read and written. Backward: the output's gradient is read twice, the
    // input once, its gradient read and written. Products of this rank take the time of their bytes.
    const double bytes = size_ * rows * (second ? 3 * layer.in + 2 * layer.adapted : layer.in + 2 * layer.adapted);
    double ms = (second ? 4 : 2) * kLeastMs;
    ms = std::max(ms, clock_.moved(bytes));
    if (in_.config.lora.dora) ms += clock_.moved((size_ + 8) * layer.in * layer.adapted);
    note(adapters, ms, is_backward);
  }

  void block(const PlannedLayer& layer, const CausalPass& pass, bool is_backward, bool as_forward = false) {
    const HfModelConfig& f = model_.facts();
    const double n = pass.tokens, factor = is_backward && !as_forward ? 2 : 1;
    linear(layer.qkv, n, is_backward, as_forward, 1, {.rows = true, .gradient = true});
    linear(layer.o, n, is_backward, as_forward);
    if (layer.has_experts()) {
      experts(layer, n, factor, is_backward, as_forward);
    } else {
      linear(layer.gate_up, n, is_backward, as_forward, 1, {.rows = true, .gradient = true});
      // Nobody reads what a recomputed block returns, so its last product is left out (nn/recompute.h).
      if (!as_forward) linear(layer.down, n, is_backward, as_forward, 1, {.rows = true});
    }
    attend(pass.rows, pass.length, factor, is_backward);
    attend(pass.answer_rows, pass.answer_length, factor, is_backward);
    const double qk = n * number((f.heads + f.kv_heads) * f.head_dim) * size_, unit = n * width_ * size_;
    if (pass.shared) move((n + pass.places()) * (layer.qkv.out + layer.o.in) * size_, factor, is_backward);
    move((f.qk_norm || f.form.wide_qk_norm ? 4 : 2) * qk, factor, is_backward);
    const double parts = number(model_.parts());
    move(2 * unit / parts, 2 * factor, is_backward);
    if (parts > 1) note(others, 2 * clock_.pieces(parts, n * width_, size_), is_backward);
    // Adapters, biases and other gates take the gate out of the products.
    const bool fused = size_ < 4 && in_.gpu.capability == 90 && !f.form.gelu_gate && layer.gate_up.targets == 0 &&
                       layer.down.targets == 0 && model_.quantized_values() == 0;
    const double rows = layer.has_experts() ? n * number(f.experts.top_k) : n;
    if (!fused) move(3 * rows * layer.down.in * size_, factor, is_backward);
  }

  // As the plan of language models: router, gate and plan, rows together and apart, gates and ups.
  void experts(const PlannedLayer& layer, double n, double factor, bool is_backward, bool as_forward) {
    const DecoderExperts& e = model_.facts().experts;
    const double rows = n * number(e.top_k), used = std::min(number(e.count), rows);
    linear(layer.router, n, is_backward, as_forward);
    linear(layer.gate_up, rows, is_backward, as_forward, used);
    linear(layer.down, rows, is_backward, as_forward, used);
    move(n * number(e.count) * 8, 4, is_backward);
    move((rows + n) * width_ * size_, 2, is_backward);
    move(2 * rows * layer.down.in * size_, factor, is_backward);
  }

  void attend(double rows, double length, double factor, bool is_backward) {
    if (rows == 0) return;
    const HfModelConfig& f = model_.facts();
    const double window = f.window > 0 ? std::min(number(f.window), length) : length;
    const double keys = window < length ? window - window * (window - 1) / (2 * length) : length / 2;
    const double q = number(f.heads * f.head_dim), kv = number(f.kv_heads * f.head_dim);
    const double flops = 4 * slowdown_ * rows * length * keys * q * (factor > 1 ? 1.25 : 1);
    const double bytes = rows * length * (2 * q + 2 * kv) * size_;
    note(attention, factor * std::max(kLeastMs, clock_.slower(flops, kCausalShare, bytes)), is_backward);
  }

  const PlanInput& in_;
  const CausalPlan& model_;
  TimeModel clock_;
  double size_, slowdown_, width_, share_ = 1;
};

// Sampling of a step's answers: a phase that training waits for.
struct SampledTimes {
  double merge = 0, prefill = 0, decode = 0, encode = 0;
};

SampledTimes sampled_times(const PlanInput& in, const CausalPlan& model, const PolychromicPlan& plan,
                           PolychromicKind kind) {
  const TimeModel clock(in.gpu);
  const HfModelConfig& f = model.facts();
  const double size = element_size(in.config), slowdown = product_slowdown(in.config);
  const double prompts = number(plan.micro_batches * plan.prompts(kind)), rows = prompts * number(plan.samples(kind));
  const double asked =
      in.config.polychromic.generation_batch > 0 ? number(in.config.polychromic.generation_batch) : 256;
  const double batch = std::min(asked, rows), batches = std::ceil(rows / batch);
  const double head = number(f.vocab_size * f.hidden_size);
  SampledTimes t;
  t.merge = clock.moved(2 * size * model.merged_values());
  const double P = number(model.prompts().mean);
  const double attention = 4 * prompts * P * P / 2 * number(f.heads * f.head_dim * f.layers);
  t.prefill = clock.slower(2 * slowdown * prompts * P * model.block_values(), kProductShare,
                           size * model.read_values(prompts * P)) +
              clock.slower(slowdown * attention, kCausalShare, 0);
  // Every token reads all weights once for the batch, and each row's keys and values so far.
  // Quantised ones are dequantised first, or read as they are.
  const bool direct = model.decodes_quantized(batch) && size < 4 && in.gpu.capability >= 80;
  const double weights = size * (model.read_values(batch) + head) + model.quantized_bytes() +
                         (direct ? -size : size) * model.quantized_values();
  const double held = P + number(plan.tokens(kind)) / 2;
  const double keys = f.window > 0 ? std::min(held, number(f.window)) : held;
  const double cache = size * batch * keys * number(2 * f.layers * f.kv_heads * f.head_dim);
  const double read = 1e3 * (weights + cache) / (kDecodeShare * in.gpu.bytes_per_s);
  const double computed = clock.slower(2 * slowdown * batch * (model.block_values() + head), kProductShare, 0);
  const double step = std::max(read, computed) + kDecodeKernels * kDecodeKernelMs * number(f.layers);
  t.decode = batches * number(plan.tokens(kind)) * step;
  if (model.encoder().parameters > 0) t.encode = kEncodeMs * rows;
  return t;
}

}  // namespace

void CausalPlan::add_times(const PlanInput& in, Plan& plan) const {
  if (in.config.parallel.tensor > parts_) {
    PlanInput of_part = in;
    of_part.model = part(in.config.parallel.tensor);
    return of_part.model->add_times(of_part, plan);
  }
  const PolychromicPlan steps(in.config, in.data_ranks());
  const StepShares shares = step_shares(in.config, steps);
  CausalClock clock(in, *this);
  const auto train = [&](PolychromicKind kind, double share) {
    if (share == 0) return;
    for (const CausalPass& pass : causal_passes(in, kind, steps.micro_rows, prompts_.mean)) {
      clock.add(pass, share * number(steps.micro_batches));
    }
  };
  train(PolychromicKind::responses, shares.responses);
  train(PolychromicKind::diversity, shares.diversity);
  train(PolychromicKind::rewards, shares.rewards);
  plan.backward_ms = clock.backward;
  plan.forward_ms = clock.all() - clock.backward;

  SampledTimes sampled;
  const auto sample = [&](PolychromicKind kind, double share) {
    if (share == 0) return;
    const SampledTimes t = sampled_times(in, *this, steps, kind);
    sampled.merge += share * t.merge;
    sampled.prefill += share * t.prefill;
    sampled.decode += share * t.decode;
    sampled.encode += share * t.encode;
  };
  sample(PolychromicKind::diversity, shares.diversity);
  sample(PolychromicKind::rewards, shares.samples_rewards);
  const auto add = [&](const char* name, double ms, const std::string& note) {
    if (ms > 0) plan.time.push_back({name, ms, note});
  };
  const double share = shares.diversity + shares.samples_rewards;
  const std::string when = share < 1 ? cat("in ", percent(share), " of the steps, on average; ") : std::string();
  add("merge", sampled.merge, when + "of the adapter into a copy of the weights");
  add("prefill", sampled.prefill, cat(when, "prompts of ", prompts_.mean, " tokens"));
  add("decode", sampled.decode, when + "all completions at their longest");
  add("encode", sampled.encode, when + "completions, by the sentence encoder");
  add("matrix products", clock.products, "of blocks and of the head");
  add("quantising", clock.quantising, "rows that frozen weights multiply in 8 bits, and weights transposed");
  add("adapters", clock.adapters, "products of low rank, and their gradients");
  add("attention", clock.attention, "");
  add("norms, rotation, loss", clock.others, "what is not inside a product");
  add_optimizer_times(in, plan);
  plan.time.push_back({"everything else", kStepOverheadMs, "embedding, clearing, norms, starts of kernels"});
}

std::string CausalPlan::shares() const {
  return cat("rows at their full length (chat.max_length); matrix products reach ", percent(kProductShare),
             " of its FLOP/s, those in 8 bits ", percent(kFp8Share), ", attention ", percent(kCausalShare),
             ", decoding ", percent(kDecodeShare), " of its bytes per second, no other pass takes less than ",
             1e3 * kLeastMs, " us");
}

// All passes of a micro-batch are in one backward pass. The later one of two comes first.
double CausalPlan::backward_done(const PlanInput& in, int64_t groups, int64_t count) const {
  if (groups == 0) return 0;
  const PolychromicPlan plan(in.config, in.data_ranks());
  const StepShares shares = step_shares(in.config, plan);
  const PolychromicKind kind = shares.diversity > 0 ? PolychromicKind::diversity
                               : shares.rewards > 0 ? PolychromicKind::rewards
                                                    : PolychromicKind::responses;
  double recorded = 0;
  for (const CausalPass& pass : causal_passes(in, kind, plan.micro_rows, prompts_.mean)) recorded += pass.recorded;
  return (recorded - 1 + number(groups) / number(count)) / recorded;
}

// Of the forward pass, the rest of which is the head and the loss.
double CausalPlan::share_of_blocks(const PlanInput& in, const CausalPass& pass) const {
  CausalPass without_loss = pass;
  without_loss.response_labels = without_loss.answer_labels = 0;
  CausalClock all(in, *this), blocks(in, *this);
  all.add(pass, 1);
  blocks.add(without_loss, 1);
  return (blocks.all() - blocks.backward) / (all.all() - all.backward);
}

}  // namespace hrm::tasks
