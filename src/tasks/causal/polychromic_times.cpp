#include "hrm/tasks/polychromic_times.h"

#include <algorithm>

#include "hrm/base/text.h"
#include "hrm/metrics/metric_text.h"
#include "hrm/runtime/phase.h"

namespace hrm::tasks {

void SamplingTimes::add(const SamplingTimes& more) {
  merge_ms += more.merge_ms;
  prefill_ms += more.prefill_ms;
  decode_ms += more.decode_ms;
  encode_ms += more.encode_ms;
  diversity_ms += more.diversity_ms;
  prompt_tokens += more.prompt_tokens;
  answer_tokens += more.answer_tokens;
  encoded_tokens += more.encoded_tokens;
}

void PolychromicTimes::add_work(double flops, double tokens) {
  work_.flops += flops;
  work_.tokens += tokens;
  ++work_.steps;
}

double PolychromicTimes::flops_per_step() const {
  return work_.steps > 0 ? work_.flops / static_cast<double>(work_.steps) : work_.flops_before;
}

NamedValues PolychromicTimes::take(int64_t steps, double step_ms, const NamedValues& phases) {
  NamedValues out;
  last_shares_.clear();
  const auto phase = [&](const char* name, double ms, double tokens) {
    out.emplace_back(cat(name, "_ms"), ms);
    if (tokens > 0 && ms > 0) out.emplace_back(cat(name, "_tokens_per_s"), tokens / ms * 1e3);
    last_shares_.emplace_back(name, ms / step_ms);
  };
  const double learned = work_.steps > 0 ? work_.tokens / static_cast<double>(work_.steps) : 0;
  work_ = {.flops_before = flops_per_step()};
  if (!phases.empty()) {
    const auto ms = [&](Phase name) { return find_value(phases, phase_name(name)).value_or(0); };
    phase("forward", ms(Phase::forward), learned);
    phase("backward", ms(Phase::backward), learned);
    // With the gradients of other ranks and their norm.
    phase("optimizer", ms(Phase::all_reduce) + ms(Phase::grad_clip) + ms(Phase::optimizer_step), 0);
  }
  if (samples_) {
    const auto all = static_cast<double>(steps);
    double rest = step_ms;
    const auto sampled = [&](const char* name, double ms, int64_t tokens) {
      phase(name, ms / all, static_cast<double>(tokens) / all);
      rest -= ms / all;
    };
    const SamplingTimes& t = sampling_;
    const auto generated = static_cast<double>(t.answer_tokens);
    last_generated_per_s_ = generated > 0 ? generated / (t.prefill_ms + t.decode_ms) * 1e3 : 0;
    sampled("merge", t.merge_ms, 0);
    sampled("prefill", t.prefill_ms, t.prompt_tokens);
    sampled("decode", t.decode_ms, t.answer_tokens);
    sampled("encode", t.encode_ms, t.encoded_tokens);
    sampled("diversity", t.diversity_ms, t.answer_tokens);
    out.emplace_back("train_ms", rest);
    sampling_ = {};
  }
  std::stable_sort(last_shares_.begin(), last_shares_.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  return out;
}

std::string PolychromicTimes::progress_text() const {
  std::string text;
  if (last_generated_per_s_ > 0) text += cat(" | generated ", metrics::fixed(last_generated_per_s_, 0), " tok/s");
  // Shares of the step: the longest, and what is at least one in twenty. All are in metrics.jsonl.
  std::string shares;
  for (const auto& [name, share] : last_shares_) {
    if (shares.empty() || share >= 0.05)
      shares += cat(shares.empty() ? " | " : ", ", name, " ", metrics::fixed(100 * share, 0), " %");
  }
  return text + shares;
}

}  // namespace hrm::tasks
