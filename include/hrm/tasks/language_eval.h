#pragma once
// The measuring of a language model on validation slices: in a training and by `hrm_train eval`.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hrm/config/config.h"
#include "hrm/data/language_stream.h"
#include "hrm/data/text_encoder.h"
#include "hrm/models/language_model.h"
#include "hrm/parallel/comm.h"
#include "hrm/tasks/task.h"

namespace hrm::tasks {

struct LanguageEvalOptions {
  data::LanguageShape shape;    // the longest rows
  int64_t rows = 1;             // of a batch on each rank
  bool document_masks = false;  // of packed rows
  int64_t chunk = 2048;         // tokens whose logits exist at one time
  bool every_batch = false;     // also those without rows of this rank, where ranks meet in every pass (zero 3)
};
// For task=language: the rows of a training micro-batch, unless eval.batch_size says otherwise.
LanguageEvalOptions language_eval_options(const config::Config& config, int64_t ranks);

class LanguageEvaluation {
 public:
  // `model` must live as long. `text`: what made the ids, for bits per byte; nullopt: not known. `comm`: the ranks that
  // share the samples; null = this one alone. Error(data) for a slice without samples.
  LanguageEvaluation(models::LanguageModel& model, const LanguageEvalOptions& options,
                     std::vector<data::ValidationSlice> slices, const std::optional<data::TextEncoder>& text,
                     at::Device device, std::shared_ptr<parallel::Comm> comm = nullptr);

  // Evaluates the current weights. Over all labelled tokens: loss (mean cross-entropy, nats), perplexity, accuracy (of
  // tokens), bits_per_byte (if the text of the ids is known: cross-entropy of all labels over its bytes),
  // exact_accuracy (rows with every label right), tokens, rows. With several slices each again, prefixed by its name
  // and a slash. gate_warmup: as LanguageInputs. An exception from `progress` ends it. It is called equally often on
  // every rank.
  NamedValues run(const std::function<void(const EvalProgress&)>& progress, const at::Tensor& gate_warmup = {});

 private:
  at::Tensor measure(const data::LanguageTestBatch& batch, const at::Tensor& gate_warmup) const;

  models::LanguageModel& model_;
  LanguageEvalOptions options_;
  at::Device device_;
  std::shared_ptr<parallel::Comm> comm_;
  std::vector<data::LanguageReader> readers_;
  at::Tensor bytes_;  // (V) int64 on the device; undefined where the text is not known
};

// "loss 1.234 | bits/byte 1.05 | tokens 61.2 % | exact 3.1 % | 2,000 rows".
std::string language_eval_text(const NamedValues& result);

}  // namespace hrm::tasks
