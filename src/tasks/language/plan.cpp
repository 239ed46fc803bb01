#include "tasks/language/plan.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "hrm/base/error.h"
#include "hrm/base/text.h"
#include "hrm/objectives/language.h"
#include "hrm/tasks/language.h"
#include "hrm/tasks/language_rows.h"
#include "hrm/tasks/reduce_maxima.h"
#include "tasks/language/plan_blocks.h"

namespace hrm::tasks {
namespace {

// A block of sm90/memory_blocks.cuh of width 512, in the step of docs/benchmarks.md; and the multiprocessors that its
// clusters share.
constexpr double kMemoryBlockMs = 0.024, kMultiprocessors = 132;

double number_of_parts(const PlanInput& in) {
  return static_cast<double>(in.config.parallel.tensor);
}

// Time of the passes over blocks, each by the slower of computing and moving.
class LanguageClock {
 public:
  explicit LanguageClock(const PlanInput& in, bool with_fp8 = true)
      : in_(in),
        w_(language_widths(in)),
        clock_(in.gpu),
        slowdown_(product_slowdown(in.config)),
        fp8_(with_fp8 && in_fp8(in) ? in.fp8_share : 0) {}

  double products = 0, quantising = 0, attention = 0, others = 0;  // ms
  double backward = 0;                                             // of them

  double blocks() const { return products + quantising + attention + others; }

  // `forwards` passes without and `recorded` ones with a backward pass.
  void add(const BlockStack& stack, double forwards, double recorded) {
    w_ = part_widths(in_, stack);
    parts_ = is_cut(in_, stack) ? number_of_parts(in_) : 1;
    const double again = in_.config.lm.recompute && !stack.mamba2 ? recorded : 0;
    const bool one_kernel = is_one_kernel(in_, stack);
    if (one_kernel) memory_blocks(stack, forwards + recorded + again);
    for (int64_t layer = 0; layer < stack.layers; ++layer) {
      if (!one_kernel) block(stack, layer, forwards + recorded, 1, false);
      if (!one_kernel) block(stack, layer, again, 1, false, /*unread=*/true);
      block(stack, layer, recorded, 2, true);
    }
  }

  // The weights in 8 bits: the maxima and the values of fp32 masters; and, for each backward pass, transposed.
  void weights(double backward_passes) {
    if (fp8_ > 0) quantising += clock_.moved((9 + 2 * backward_passes) * static_cast<double>(in_.fp8_parameters));
  }

  void head(double rows) {
    // The logits, the gradient of what the head reads and that of its weight; each chunk of logits is read twice and
    // written.
    w_ = part_widths(in_, {});
    product(rows, w_.model, w_.vocabulary, 3, false);
    pass(3 * rows * w_.vocabulary * size(), 1, false);
  }

 private:
  double size() const { return element_size(in_.config); }

  void note(double& part, double ms, bool is_backward) {
    part += ms;
    if (is_backward) backward += ms;
  }
  void product(double rows, double in, double out, double times, bool is_backward) {
    const double bytes = size() * (rows * (in + out) + in * out);
    const double flops = 2 * slowdown_ * rows * in * out;
    note(products, times * std::max(kLeastMs, clock_.slower(flops, kProductShare, bytes)), is_backward);
  }
  // Whether blocks quantise where they compute (nn/fp8_block.h), and not by passes of their own.
  bool fuses() const { return in_.config.precision.fp8_scaling == config::Fp8Scaling::delayed; }

  bool by_rows() const { return in_.config.precision.fp8_scaling == config::Fp8Scaling::rows; }

  // A linear layer of a token block, whose products are in 8 bits where fp8 is on. What it multiplies by its weight,
  // its input or the gradient of its output, is read and written twice by a pass of its own, unless what comes before
  // it does that.
  void layer(double rows, double in, double out, double passes, double factor, bool is_backward,
             bool quantised_before = false) {
    const double eights = fp8_;
    product(rows, in, out, (1 - eights) * passes * factor, is_backward);
    if (eights == 0) return;
    const double bytes = rows * in + in * out + size() * rows * out;
    const double ms = std::max(kLeastMs, clock_.slower(2 * rows * in * out, kFp8Share, bytes));
    note(products, eights * passes * factor * ms, is_backward);
    const double values = rows * (is_backward ? out : in);
    if (quantised_before && fuses()) return;
    const double written = is_backward || by_rows() ? 2 : 1;  // as it stands, and transposed
    note(quantising, eights * passes * std::max(kLeastMs, clock_.moved((size() + written) * values)), is_backward);
    if (fuses()) return;
    note(quantising, eights * passes * std::max(kLeastMs, clock_.moved(size() * values)), is_backward);
  }
  // ops/fp8_block.h: inside the product for short sums, otherwise by a pass; its gradient reads gates, ups and the
  // gradient, and writes both of its results and the activations in 8 bits, most of them twice.
  void gate_in_8_bits(double n, double times, bool is_backward) {
    if (is_backward) return pass((3 * size() + 5) * n * w_.inner, fp8_ * times, true);
    if (w_.model > 2048) pass((2 * size() + 1) * n * w_.inner, fp8_ * times, false);
  }
  // What the backward pass quantises once more, transposed only, since it was not kept.
  void again(double values, double times) {
    if (fp8_ > 0 && !by_rows())
      note(quantising, fp8_ * times * std::max(kLeastMs, clock_.moved((size() + 1) * values)), true);
  }
  void pass(double bytes, double times, bool is_backward) {
    note(others, times * std::max(kLeastMs, clock_.moved(bytes)), is_backward);
  }
  void attend(const BlockStack& s, double keys, double times, bool is_backward) {
    const double flops = 4 * slowdown_ * s.positions() * keys * w_.queries * (is_backward ? 1.25 : 1);
    const double bytes = s.positions() * (2 * w_.queries + 2 * w_.values) * size();
    const double share = causal_share(w_.queries / w_.heads, keys);
    note(attention, times * std::max(kLeastMs, clock_.slower(flops, share, bytes)), is_backward);
  }

  // By sm90/memory_blocks.cuh: whole memories in clusters of a multiprocessor for each head.
  void memory_blocks(const BlockStack& s, double passes) {
    const double clusters = std::ceil(s.rows / std::floor(64 / s.length));
    const double rounds = std::ceil(clusters / std::floor(kMultiprocessors / w_.heads));
    note(products, passes * static_cast<double>(s.layers) * rounds * kMemoryBlockMs * w_.model / 512, false);
  }

  // A block `passes` times; in a backward pass each product is two. unread: nobody reads its result, whose product is
  // left out (nn/recompute.h).
  void block(const BlockStack& s, int64_t layer_index, double passes, double factor, bool is_backward,
             bool unread = false) {
    if (passes == 0) return;
    const double n = s.positions(), unit = n * w_.model * size(), qk = n * (w_.queries + w_.values) * size();
    if (s.mamba2) return mamba2(s, passes, factor, is_backward);
    const double fp8 = s.reads == BlockStack::Reads::memory ? std::exchange(fp8_, 0) : fp8_;
    layer(n, w_.model, w_.queries + 2 * w_.values, passes, factor, is_backward, !is_backward || !in_.config.lm.qk_norm);
    layer(n, w_.queries, w_.model, passes, factor, is_backward);
    if (is_backward && w_.queries * w_.model >= static_cast<double>(nn::kFp8WideWeight)) again(n * w_.queries, passes);
    attend(s, s.keys, passes * factor, is_backward);
    if (s.cross) {
      layer(n, w_.model, w_.queries, passes, factor, is_backward);
      product(s.rows * s.memory, w_.model, 2 * w_.values, passes * factor, is_backward);
      layer(n, w_.queries, w_.model, passes, factor, is_backward);
      attend(s, s.memory, passes * factor, is_backward);
    }
    pass(2 * qk, passes * factor, is_backward);  // rotation
    const double halves = s.cross ? 3 : 2;
    pass(2 * unit / parts_, halves * passes * factor, is_backward);  // norms
    if (parts_ > 1) note(others, halves * passes * clock_.pieces(parts_, n * w_.model, size()), is_backward);
    if (is_backward) again(n * w_.model, 2 * passes);
    if (has_experts(in_, s, layer_index)) {
      experts(n, passes, factor, is_backward);
    } else {
      const bool gated = !prototype(in_);
      layer(n, w_.model, (gated ? 2 : 1) * w_.inner, passes, factor, is_backward, gated);
      if (!unread || !gated) {
        layer(n, w_.inner, w_.model, passes, factor, is_backward, gated && !is_backward);
      }
      const bool fused = gated && size() < 4 && in_.gpu.capability == 90,
                 fused_in_8_bits = fp8_ > 0 && gated && fuses();
      if (!fused || !fused_in_8_bits)
        pass(3 * n * w_.inner * size(), (fused ? fp8_ : 1) * passes * factor, is_backward);
      if (fused && fused_in_8_bits) gate_in_8_bits(n, passes * factor, is_backward);
    }
    fp8_ = fp8;
  }

  void experts(double n, double passes, double factor, bool is_backward) {
    const config::MoeConfig& moe = in_.config.moe;
    const auto picks = static_cast<double>(moe.top_k), count = static_cast<double>(moe.experts);
    const bool gated = moe.activation == config::ExpertActivation::swiglu;
    const auto inner = static_cast<double>(models::expert_inner(moe, in_.config.lm.hidden_size));
    const double rows = n * picks;
    product(n, w_.model, count, passes * factor, is_backward);
    for (const double width : {gated ? 2 * inner : inner, inner}) {
      const double bytes = size() * (rows * (w_.model + width) + std::min(count, rows) * w_.model * width);
      const double flops = 2 * slowdown_ * rows * w_.model * width;
      note(products, passes * factor * std::max(kLeastMs, clock_.slower(flops, kProductShare, bytes)), is_backward);
    }
    pass(n * count * 8, 4 * passes, is_backward);                                 // gate, plan, their sums
    pass((rows + n) * w_.model * size(), 2 * passes, is_backward);                // rows together and apart
    pass((gated ? 2 : 1) * rows * inner * size(), passes * factor, is_backward);  // slopes, or gates and ups
    if (moe.shared_experts > 0) {
      const double width = static_cast<double>(moe.shared_experts) * inner;
      product(n, w_.model, gated ? 2 * width : width, passes * factor, is_backward);
      product(n, width, w_.model, passes * factor, is_backward);
      const bool fused = gated && size() < 4 && in_.gpu.capability == 90;
      if (!fused) pass((gated ? 3 : 2) * n * width * size(), passes * factor, is_backward);
    }
  }

  // The products of the scan are counted with those of attention.
  void mamba2(const BlockStack& s, double passes, double factor, bool is_backward) {
    const config::LmConfig& lm = in_.config.lm;
    const double n = s.positions(), inner = static_cast<double>(lm.mamba_expand) * w_.model;
    const double state = static_cast<double>(lm.mamba_state), groups = static_cast<double>(lm.mamba_groups);
    const double channels = inner + 2 * groups * state, heads = inner / static_cast<double>(lm.mamba_head_dim);
    const double chunk = std::min(s.length, static_cast<double>(lm.mamba_chunk));
    product(n, w_.model, inner + channels + heads, passes * factor, is_backward);
    product(n, inner, w_.model, passes * factor, is_backward);
    const double flops = 2 * n * chunk * (groups * state + inner) + 4 * n * inner * state;
    note(attention, passes * factor * std::max(kLeastMs, clock_.slower(slowdown_ * flops, kCausalShare, 0)),
         is_backward);
    pass(n * (6 * channels * size() + 7 * inner * 4 + 3 * w_.model * 4), passes * factor, is_backward);
  }

  const PlanInput& in_;
  LanguageWidths w_;
  TimeModel clock_;
  double slowdown_;
  double fp8_;        // share of the blocks' linear layers that multiply in 8 bits
  double parts_ = 1;  // of the blocks that are counted now
};

}  // namespace

const models::LanguageSizes& sizes_of(const PlanInput& in) {
  return dynamic_cast<const LanguagePlan&>(*in.model).sizes();
}

bool prototype(const PlanInput& in) {
  return models::reads_prompts(in.config.lm) && models::is_prototype(in.config.lm);
}

LanguageWidths language_widths(const PlanInput& in) {
  const config::LmConfig& lm = in.config.lm;
  LanguageWidths w;
  w.model = static_cast<double>(lm.hidden_size);
  w.heads = static_cast<double>(lm.num_heads);
  w.vocabulary = static_cast<double>(sizes_of(in).vocabulary);
  if (prototype(in)) {
    w.queries = w.values = w.model;
    w.inner = 4 * w.model;
    return w;
  }
  const double head = lm.head_dim > 0 ? static_cast<double>(lm.head_dim) : w.model / w.heads;
  w.queries = w.heads * head;
  w.values = lm.kv_heads > 0 ? static_cast<double>(lm.kv_heads) * head : w.queries;
  w.inner = static_cast<double>(models::swiglu_inner(lm));
  return w;
}

bool is_cut(const PlanInput& in, const BlockStack& stack) {
  return number_of_parts(in) > 1 && stack.reads != BlockStack::Reads::memory && !stack.mamba2;
}

LanguageWidths part_widths(const PlanInput& in, const BlockStack& stack) {
  LanguageWidths w = language_widths(in);
  if (!is_cut(in, stack)) return w;
  const double parts = number_of_parts(in);
  for (double* width : {&w.queries, &w.values, &w.heads, &w.inner}) *width /= parts;
  w.vocabulary = std::ceil(w.vocabulary / parts);
  return w;
}

double stream_share(const PlanInput& in, const BlockStack& stack) {
  return is_cut(in, stack) ? 1 / number_of_parts(in) : 1;
}

LanguagePasses language_passes(const PlanInput& in, double rows) {
  const config::LmConfig& lm = in.config.lm;
  const bool reasons = models::reads_prompts(lm);
  LanguagePasses p;
  if (reasons && !prototype(in) && lm.bridge == config::LmBridge::prefix) p.prefix = static_cast<double>(lm.prefix_len);
  const auto S = static_cast<double>(sizes_of(in).encoder_len);
  BlockStack& decoder = p.decoder;
  decoder.layers = lm.layers;
  decoder.rows = rows;
  decoder.length = static_cast<double>(sizes_of(in).decoder_len) + (reasons ? p.prefix : S);
  const double T = decoder.length;
  const bool window = lm.window > 0 && static_cast<double>(lm.window) < T;
  const auto width = static_cast<double>(lm.window);
  decoder.keys = window ? width - width * (width - 1) / (2 * T) : T / 2;  // the first positions see less
  // Documents hide more, but how much is known to the data alone.
  const bool documents = !reasons && in.config.data.document_masks && sizes_of(in).encoder_len == 0;
  if (documents) decoder.spans = rows * T * sizeof(int32_t);
  decoder.cross = reasons && p.prefix == 0;
  decoder.memory = lm.bridge == config::LmBridge::prefix ? static_cast<double>(lm.prefix_len) : 1;
  if (!reasons) return p;

  p.encoder = {.layers = lm.enc_layers,
               .rows = rows,
               .length = S,
               .keys = S,
               .mask = rows * S,
               .mamba2 = !prototype(in) && lm.encoder == config::LmEncoder::mamba2,
               .reads = BlockStack::Reads::prompt};
  if (p.encoder.mamba2) p.encoder.mask = 0;
  const auto memory = [&](int64_t layers, int64_t length) {
    const auto vectors = static_cast<double>(length);
    return BlockStack{
        .layers = layers, .rows = rows, .length = vectors, .keys = vectors, .reads = BlockStack::Reads::memory};
  };
  p.fast = memory(lm.l_layers, lm.l_len);
  p.slow = memory(lm.h_layers, lm.h_len);
  p.cycles = static_cast<double>(lm.h_cycles);
  p.steps = static_cast<double>(lm.l_steps);
  const bool all = in.config.objective.halting > 0 || lm.gradient_cycles == 0;
  p.recorded = all ? p.cycles : std::min(p.cycles, static_cast<double>(lm.gradient_cycles));
  if (in.config.objective.deep_supervision > 0) p.answers = p.cycles;
  return p;
}

bool has_experts(const PlanInput& in, const BlockStack& stack, int64_t layer) {
  const bool answer = stack.reads == BlockStack::Reads::answer;
  if (stack.reads == BlockStack::Reads::memory || stack.mamba2 || (answer && prototype(in))) return false;
  return models::is_expert_block(in.config, answer ? models::BlockPlace::decoder : models::BlockPlace::encoder, layer);
}

namespace {

void add_blocks(LanguageClock& clock, const LanguagePasses& p) {
  clock.add(p.encoder, 0, 1);
  clock.add(p.fast, (p.cycles - p.recorded) * p.steps, p.recorded * p.steps);
  clock.add(p.slow, p.cycles - p.recorded, p.recorded);
  clock.add(p.decoder, 0, p.answers);
}

// Of the forward pass, the rest of which is the head and the loss.
double share_of_blocks(const PlanInput& in) {
  const LanguagePasses p = language_passes(in, 1);
  LanguageClock blocks(in), head(in);
  add_blocks(blocks, p);
  head.head(p.answers * (p.decoder.length - p.prefix));
  const double ms = blocks.blocks() - blocks.backward;
  return ms / (ms + head.blocks());
}

}  // namespace

double fp8_gain_ms(const PlanInput& in, int64_t micro) {
  const LanguagePasses p = language_passes(in, static_cast<double>(micro));
  const double micro_batches = static_cast<double>(in.own_samples() / micro);
  LanguageClock eights(in), weights(in), wide(in, /*with_fp8=*/false);
  add_blocks(eights, p);
  add_blocks(wide, p);
  weights.weights(micro_batches);
  return wide.blocks() - eights.blocks() - weights.quantising / micro_batches;
}

std::string why_fp8_does_not_pay(const PlanInput& in, int64_t micro) {
  const double ms = fp8_gain_ms(in, micro);
  if (ms > 0) return "";
  const LanguageWidths w = language_widths(in);
  const BlockStack decoder = language_passes(in, static_cast<double>(micro)).decoder;
  return cat("fp8: layers of ", w.model, " by ", w.inner, " with ", decoder.positions(),
             " tokens gain nothing here; set precision.blocks to same, or train wider layers or larger micro-batches");
}

void LanguagePlan::add_times(const PlanInput& in, Plan& plan) const {
  const auto rows = static_cast<double>(in.own_samples());  // micro-batches add up to it
  const LanguagePasses p = language_passes(in, rows);
  const int64_t micro = in.config.train.micro_batch_size;
  LanguageClock clock(in);
  add_blocks(clock, p);
  plan.backward_ms = clock.backward;
  clock.weights(micro > 0 ? rows / static_cast<double>(micro) : 1);
  clock.head(p.answers * rows * (p.decoder.length - p.prefix));
  plan.forward_ms = clock.blocks() - plan.backward_ms;
  plan.time.push_back({"matrix products", clock.products,
                       in_fp8(in) ? cat("of blocks, ", percent(in.fp8_share), " of them in 8 bits, and of the head")
                                  : "of blocks and of the head"});
  if (in_fp8(in)) {
    const std::string no_gain = why_fp8_does_not_pay(in, micro > 0 ? micro : static_cast<int64_t>(rows));
    plan.time.push_back(
        {"quantising", clock.quantising, no_gain.empty() ? "8-bit copies of inputs, gradients and weights" : no_gain});
  }
  plan.time.push_back({p.encoder.mamba2 ? "attention, scan" : "attention", clock.attention, ""});
  plan.time.push_back({"norms, rotation, loss", clock.others, "what is not inside a product"});
  add_optimizer_times(in, plan);
  plan.time.push_back({"everything else", kStepOverheadMs, "embedding, clearing, norms, starts of kernels"});
}

std::string LanguagePlan::shares() const {
  return cat("matrix products reach ", percent(kProductShare), " of its FLOP/s, those in 8 bits ", percent(kFp8Share),
             ", attention ", percent(kCausalShare), " (heads of 64; of 128 up to ", percent(causal_share(128, 4096)),
             " in long rows), none of them and no pass over memory takes less than ", 1e3 * kLeastMs, " us");
}

double LanguagePlan::backward_done(const PlanInput& in, int64_t groups, int64_t count) const {
  if (groups == 0) return 0;
  // A backward pass begins with the head and the blocks of the decoder, then those of the core, then those of the
  // encoder. The core is done with all of its blocks in their first uses. A block's gradients are complete after its
  // first use.
  const LanguagePasses p = language_passes(in, 1);
  if (in.config.lm.is_prototype()) return (p.answers - 1) / p.answers;  // the head alone is a group
  std::vector<double> done;                                             // block passes after which a group is complete
  double before = (p.answers - 1) * static_cast<double>(p.decoder.layers);
  const auto add = [&](int64_t layers) {
    for (int64_t i = 0; i < layers; ++i) done.push_back(before += 1);
  };
  if (!in.config.lm.tied) done.push_back(before);
  add(p.decoder.layers);
  if (p.encoder.layers > 0) {
    before += (p.recorded - 1) * static_cast<double>(p.slow.layers) +
              (p.recorded * p.steps - 1) * static_cast<double>(p.fast.layers);
    add(p.slow.layers);
    add(p.fast.layers);
    add(p.encoder.layers);
  }
  require(static_cast<int64_t>(done.size()) == count, ExitCode::unexpected, count, " gradient groups of ", done.size(),
          " blocks");
  return done[static_cast<size_t>(groups - 1)] / before;
}

std::string LanguagePlan::name_of_model(const config::LmConfig& lm) {
  return models::reads_prompts(lm) ? cat(lm.style, " HRM language model") : std::string(name_of(lm.arch));
}

bool in_fp8(const PlanInput& in) {
  return in.config.precision.blocks == config::BlockPrecision::fp8;
}

Fp8Parameters fp8_parameters(models::LanguageModel& model, const config::PrecisionConfig& precision) {
  Fp8Parameters out;
  if (precision.blocks != config::BlockPrecision::fp8) return out;
  int64_t all = 0;
  const auto layers = models::token_linears(model);
  for (const auto& layer : layers) all += layer.linear->weight().numel();
  for (const auto& layer : nn::without_skipped(layers, precision.fp8_skip)) {
    const int64_t values = layer.linear->weight().numel();
    out.count += values;
    if (values < nn::kFp8WideWeight) out.transposed += values;
    out.largest = std::max(out.largest, values);
  }
  out.share = all > 0 ? static_cast<double>(out.count) / static_cast<double>(all) : 0;
  return out;
}

namespace {

// In what order a pass uses the blocks of encoder and decoder, by gradient group: the head, those of the decoder, the
// last block first, of the core, and of the encoder. With cross-attention the memory is projected for all blocks of the
// decoder before they run.
std::vector<int> block_uses(const config::Config& config) {
  const config::LmConfig& lm = config.lm;
  if (!models::reads_prompts(lm) || lm.is_prototype()) return {};
  const auto layers = static_cast<int>(lm.layers), encoder = static_cast<int>(lm.enc_layers);
  const int head = lm.tied ? 0 : 1;  // a group of its own
  const int core = static_cast<int>(lm.h_layers + lm.l_layers);
  std::vector<int> uses;
  const auto use_all = [&](int first, int count) {
    for (int i = count; i-- > 0;) uses.push_back(first + i);
  };
  if (lm.encoder == config::LmEncoder::transformer) use_all(head + layers + core, encoder);
  const int64_t answers = config.objective.deep_supervision > 0 ? lm.h_cycles : 1;
  for (int64_t answer = 0; answer < answers; ++answer) {
    if (lm.bridge != config::LmBridge::prefix) use_all(head, layers);
    use_all(head, layers);
  }
  return uses;
}

}  // namespace

ModelOutline LanguagePlan::outline(const config::Config& config) const {
  return outline_part(config, nullptr);
}

ModelOutline LanguagePlan::outline_part(const config::Config& config,
                                        const std::shared_ptr<const nn::TensorAcross>& across) const {
  const auto model = models::make_language_model_outline(config, sizes_, across);
  const Mixtures mixtures = models::mixtures_of(*model);
  const Fp8Parameters fp8 = fp8_parameters(*model, config.precision);
  return {.model = model,
          .parameters = &model->parameter_set(),
          .blocks_run_once = model->blocks_run_once(),
          .block_uses = block_uses(config),
          .group_defaults = language_group_defaults(mixtures),
          .flops_per_sample = models::training_flops_per_row(config, sizes_),
          .fp8_parameters = fp8.count,
          .fp8_share = fp8.share,
          .fp8_transposed = fp8.transposed,
          .largest_fp8 = fp8.largest,
          .metric_sums = static_cast<int64_t>(language_metric_names(config, *model).size())};
}

void LanguagePlan::rehearse_pass(const PlanInput& in, const ModelOutline& outline, int64_t micro_batches_left,
                                 StepRehearsal& step) const {
  using Moment = StepPlace::Moment;
  auto& model = dynamic_cast<models::LanguageModel&>(*outline.model);
  const int64_t micro = in.micro_samples();
  const auto on_meta = at::device(at::kMeta);
  data::LanguageBatch batch;
  if (sizes_.encoder_len > 0) {
    batch.encoder_ids = at::empty({micro, sizes_.encoder_len}, on_meta.dtype(at::kLong));
    batch.encoder_mask = at::empty({micro, sizes_.encoder_len}, on_meta.dtype(at::kBool));
  }
  batch.decoder_ids = at::empty({micro, sizes_.decoder_len}, on_meta.dtype(at::kLong));
  batch.labels = at::empty_like(batch.decoder_ids);
  // Documents hide positions, which changes nothing of what travels.
  const bool prompted = models::reads_prompts(in.config.lm);
  LanguageRows rows = language_rows(batch, prompted);
  if (prompted) rows.inputs.gate_warmup = at::empty({}, on_meta.dtype(at::kFloat));
  rows.inputs.earlier_cycles = in.config.objective.deep_supervision > 0;

  const double model_share = share_of_blocks(in);
  const models::LanguageOutput output = model.forward(rows.inputs);
  step.note_work("activations", Moment::in_forward, 0, model_share, micro_batches_left);
  const objectives::LanguageLoss loss = objectives::language_loss(
      model, output, rows.labels, language_loss_options(in.config), at::empty({}, on_meta.dtype(at::kFloat)));
  step.note_work("loss", Moment::in_forward, model_share, 1, micro_batches_left);
  loss.loss.backward();
  step.note_work("activations", Moment::in_backward, 0, 1, micro_batches_left);
}

void LanguagePlan::rehearse_begin(const PlanInput& /*in*/, StepRehearsal& step) const {
  step.comm().all_reduce(at::empty({1}, at::device(at::kMeta).dtype(at::kFloat)));
  step.note("tokens", StepExchange::Moment::before_forward);
}

void LanguagePlan::rehearse_end(const PlanInput& in, const ModelOutline& outline, int64_t /*own*/,
                                StepRehearsal& step) const {
  if (in_fp8(in)) {
    const auto layers = nn::without_skipped(models::token_linears(*outline.model), in.config.precision.fp8_skip).size();
    reduce_maxima(step.comm(), at::empty({2 * static_cast<int64_t>(layers)}, at::device(at::kMeta).dtype(at::kFloat)));
    step.note("fp8 maxima", StepExchange::Moment::after_backward);
  }
  const auto mixtures =
      static_cast<int64_t>(models::mixtures_of(dynamic_cast<models::LanguageModel&>(*outline.model)).size());
  if (mixtures == 0) return;
  step.comm().all_reduce(at::empty({mixtures, in.config.moe.experts + 1}, at::device(at::kMeta).dtype(at::kDouble)));
  step.note("expert loads", StepExchange::Moment::after_backward);
}

}  // namespace hrm::tasks
