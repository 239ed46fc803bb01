// A training step of a language model as the allocator sees it.
#include <algorithm>
#include <vector>

#include "hrm/base/error.h"
#include "tasks/language/plan_blocks.h"

namespace hrm::tasks {
namespace {

// Walks through one micro-batch (models/hrm_lm.cpp, models/decoder.cpp, objectives/language.cpp).
class LanguageWalk {
 public:
  LanguageWalk(const PlanInput& in, int64_t micro)
      : in_(in),
        passes_(language_passes(in, static_cast<double>(micro))),
        size_(element_size(in.config)),
        width_(static_cast<double>(in.config.lm.hidden_size)) {}

  Ledger run() {
    const bool reasons = passes_.encoder.layers > 0;
    double encoded = 0;
    if (reasons) {
      ledger_.moment = "encoder";
      forward(passes_.encoder);
      encoded = unit(passes_.encoder);
      ledger_.take(encoded);
      core();
    }
    ledger_.moment = "decoder";
    for (double answer = 0; answer < passes_.answers; ++answer) {
      forward(passes_.decoder);
      keep(passes_.decoder.rows * (passes_.decoder.length - passes_.prefix) * width_ * size_);  // the head's input
    }
    ledger_.give(encoded);
    kept_by_forward_ = ledger_.kept;
    loss();
    backward();
    return ledger_;
  }

  // What the backward pass needs, when nothing of it is done.
  double kept() const { return kept_by_forward_; }
  int64_t recorded() const { return recorded_; }
  int64_t plain() const { return plain_; }

 private:
  double unit(const BlockStack& stack) const { return stack.positions() * width_ * size_; }

  void keep(double bytes) {
    ledger_.kept += bytes;
    ledger_.take(bytes);
  }
  // Of no block.
  void keep_rest(double bytes) {
    keep(bytes);
    kept_.push_back({.mixing = bytes});
  }

  // Blocks that are recorded, with what comes before and behind them.
  void forward(const BlockStack& stack) {
    keep_rest(first_input_bytes(in_, stack));
    if (in_.config.lm.recompute) keep_rest(stack.mask);  // of bytes; otherwise each attention has its own alone
    keep_rest(stack.spans);
    for (int64_t layer = 0; layer < stack.layers; ++layer, ++recorded_) {
      const BlockMemory block = block_memory(in_, stack, layer);
      if (in_.config.lm.recompute && !stack.mamba2) {
        ledger_.take(block.total());
        ledger_.give(block.total() - block.output);
        ledger_.kept += block.output;
      } else {
        keep(block.total());
      }
      kept_.push_back(block);
    }
    keep_rest(last_norm_bytes(in_, stack));
  }

  void forward_plain(const BlockStack& stack) {
    ledger_.take(unit(stack));
    for (int64_t layer = 0; layer < stack.layers; ++layer, ++plain_) {
      const double needed = block_memory(in_, stack, layer).plain + unit(stack);
      ledger_.take(needed);
      ledger_.give(needed);
    }
    ledger_.give(unit(stack));
  }

  // All steps of a memory's blocks, recorded or not.
  void recur(const BlockStack& stack, double steps, bool recorded) {
    if (recorded && is_one_op(in_, stack)) {
      const BlockMemory all = memory_blocks_memory(in_, stack, steps);
      const bool again = in_.config.lm.recompute;
      const double kept = again ? unit(stack) : all.mixing, passing = all.mixing + all.plain - kept;
      keep(kept);
      ledger_.take(passing);
      ledger_.give(passing);
      kept_.push_back({.mixing = kept, .backward_mixing = all.backward_mixing + (again ? all.mixing : 0)});
      recorded_ += static_cast<int64_t>(steps) * stack.layers;
      return;
    }
    for (double step = 0; step < steps; ++step) recorded ? forward(stack) : forward_plain(stack);
  }

  void core() {
    for (double cycle = 0; cycle < passes_.cycles; ++cycle) {
      const bool recorded = cycle >= passes_.cycles - passes_.recorded;
      ledger_.moment = recorded ? "recorded cycles of the core" : "cycles of the core";
      recur(passes_.fast, passes_.steps, recorded);
      recur(passes_.slow, 1, recorded);
    }
  }

  // objectives/chunked_cross_entropy.cpp: the gradients are made in the forward pass, and live until the backward pass
  // has used them.
  void loss() {
    const BlockStack& decoder = passes_.decoder;
    const double rows = passes_.answers * decoder.rows * (decoder.length - passes_.prefix);
    const double chunk = std::min(rows, static_cast<double>(in_.config.objective.chunk));
    const double vocabulary = part_widths(in_, decoder).vocabulary;
    const double logits = chunk * vocabulary * size_, hidden = rows * width_ * size_;
    const double together = passes_.answers > 1 ? hidden : 0;  // answers of all cycles as one batch
    ledger_.moment = "loss";
    ledger_.take(together);
    ledger_.take(hidden);
    const double weight = 4 * vocabulary * width_;
    ledger_.take(weight);
    ledger_.take(logits);
    ledger_.give(logits + together);
    ledger_.moment = "backward pass";
    // Of a part, the gradient goes on for its own tokens alone.
    ledger_.give(weight + hidden * (1 - 1 / static_cast<double>(in_.config.parallel.tensor)));
  }

  void backward() {
    while (!kept_.empty()) {
      const BlockMemory block = kept_.back();
      kept_.pop_back();
      ledger_.give(block.output);  // what follows is through with it
      if (in_.config.lm.recompute && block.feed_forward > 0) ledger_.take(block.mixing + block.feed_forward);
      ledger_.take(block.backward_feed_forward);
      ledger_.give(block.backward_feed_forward + block.feed_forward);
      ledger_.take(block.backward_mixing);
      ledger_.give(block.backward_mixing + block.mixing);
    }
  }

  const PlanInput& in_;
  LanguagePasses passes_;
  double size_, width_;
  Ledger ledger_;
  double kept_by_forward_ = 0;
  std::vector<BlockMemory> kept_;
  int64_t recorded_ = 0, plain_ = 0;
};

}  // namespace

void LanguagePlan::add_memory(const PlanInput& in, int64_t micro, PlannedMemory& memory) const {
  const config::LmConfig& lm = in.config.lm;
  const bool reasons = models::reads_prompts(lm);
  const LanguagePasses passes = language_passes(in, 1);
  const auto D = static_cast<double>(lm.hidden_size);
  const double head = lm.head_dim > 0 ? static_cast<double>(lm.head_dim) : D / static_cast<double>(lm.num_heads);
  double positions = static_cast<double>(models::decoder_positions(lm, sizes_)) + passes.prefix;
  if (reasons && lm.encoder == config::LmEncoder::transformer) {
    positions += static_cast<double>(models::prompt_positions(lm, sizes_));
  }
  memory.add("positions", 4 * positions * (prototype(in) ? D : head), "sines and cosines, fp32");
  const double own = static_cast<double>(in.own_samples());
  const double prompt = static_cast<double>(sizes_.encoder_len), row = static_cast<double>(sizes_.decoder_len);
  memory.add("data", own * (9 * prompt + 16 * row + (in.config.data.document_masks && !reasons ? 4 * row : 0)),
             "ids, labels and masks of the batch");

  LanguageWalk walk(in, micro);
  const Ledger ledger = walk.run();
  memory.add("activations kept", walk.kept(),
             cat("for the backward pass of ", walk.recorded(), " of ", walk.recorded() + walk.plain(), " layer passes",
                 lm.recompute ? ", which keep their inputs alone" : ""));
  memory.add("temporaries", ledger.peak() - walk.kept(),
             "at the peak, which may be that of the loss, with the head's gradients");
  memory.moment = ledger.peak_moment();
}

}  // namespace hrm::tasks
