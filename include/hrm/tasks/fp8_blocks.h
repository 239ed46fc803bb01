#pragma once
// What a task does for precision.blocks=fp8, in the order of a step: begin_step(), quantize_weights() before the first
// pass, update_scales() after the last one, count_step().

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "hrm/config/config.h"
#include "hrm/models/language_model.h"
#include "hrm/nn/fp8_linears.h"
#include "hrm/parallel/comm.h"
#include "hrm/runtime/device.h"
#include "hrm/state/registry.h"
#include "hrm/tasks/task.h"

namespace hrm::tasks {

constexpr int64_t kFp8Multiple = 16;  // the rows of each product

// The linear layers of a model's token blocks that could train in 8 bits: models::token_linears without those that have
// a bias, for which there is no fused form.
std::vector<nn::NamedLinear> fp8_candidates(torch::nn::Module& model);
// Those of them that do: precision.fp8_skip leaves some out. Error(usage) as nn::without_skipped.
std::vector<nn::NamedLinear> fp8_layers(torch::nn::Module& model, const config::PrecisionConfig& precision);

// Names of the metrics, "fp8/...": those of nn::Fp8Linears::values(), and behind them those of each candidate,
// fp8/<layer>/input/saturated first: of saturated() and of layer_values().
std::vector<std::string> fp8_metric_names(torch::nn::Module& model);

class Fp8Blocks : public Stateful {
 public:
  // The model outlives this, and its ParameterSet is built. Errors as of nn::Fp8Linears. Frees the compute copies of
  // the layers unless keeps_copies: evaluation casts the masters layer by layer. Decoding reads all weights for each
  // token, so a task that samples keeps them.
  Fp8Blocks(const config::PrecisionConfig& precision, models::LanguageModel& model, bool keeps_copies = false);

  // Chooses how the step runs. Logs from which step on blocks multiply in 8 bits.
  void begin_step(int64_t step);
  // Device work.
  void quantize_weights() const { linears_.quantize_weights(); }
  // Device work: the scales follow the largest magnitudes of the global batch, on which the ranks agree.
  void update_scales(parallel::Comm& comm) const;
  void count_step() { linears_.count_step(); }

  // Part of Task::graph_key: each mode is captured by itself.
  int64_t graph_key() const { return static_cast<int64_t>(linears_.mode()); }
  static constexpr int64_t kGraphKeys = static_cast<int64_t>(nn::Fp8Mode::rows) + 1;
  // Whether the step begun runs otherwise than the one before: no earlier mode comes back.
  bool changed_mode() const { return changed_mode_; }

  // A rank's share of the sums of a step, (fp8_metric_names()) float64: behind its last backward pass and before
  // update_scales(). The first ones are of the step before. Device work.
  at::Tensor metrics(const parallel::Comm& comm) const;
  // Without the metrics of layers that precision.fp8_skip leaves out.
  NamedValues only_used(NamedValues metrics) const;
  const nn::Fp8Linears& linears() const { return linears_; }

  // For the start of the log: which layers train in 8 bits, and that `others` do not.
  std::string describe(const std::string& others, const Runtime& runtime) const;

  void visit_state(StateVisitor& visitor) override { linears_.visit_state(visitor); }

 private:
  config::PrecisionConfig precision_;
  size_t all_ = 0, with_bias_ = 0;  // linear layers of token blocks, and those of them with a bias
  nn::Fp8Linears linears_;
  bool changed_mode_ = false;
  std::set<std::string> unused_metrics_;
};

}  // namespace hrm::tasks
