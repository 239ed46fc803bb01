#pragma once
// Causal language models for reading and writing text, from a checkpoint of the polychromic task or a folder of
// transformers or PEFT.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "hrm/data/chat_template.h"
#include "hrm/tasks/causal_lm.h"
#include "hrm/tasks/trained_model.h"

namespace hrm::tasks {

struct CausalInference : TrainedModel {
  CausalLm lm;
  std::unique_ptr<data::ChatEncoder> chat;
};

// A folder whose config.json is that of a model of transformers; its weights may be missing.
bool is_hf_folder(const std::filesystem::path& path);

// The newest checkpoint of a run of task polychromic, or a checkpoint folder. `overrides` change its configuration,
// e.g. hf.model=DIR if the frozen model has moved. An adapter stays beside the frozen weights, as in training. Rows
// have the positions of the training, or 8,192 if that is more and the model supports it. Throws as open_causal_lm,
// Error(usage) for a model of another task, Error(checkpoint) for weights that do not fit the configuration.
CausalInference open_causal_checkpoint(const std::filesystem::path& run_or_step,
                                       const std::vector<std::string>& overrides, const std::string& weights);
// With stored.place.tensor each rank opens its part.
CausalInference open_causal_checkpoint(const StoredModel& stored, const std::string& weights);

// Such a folder, or that of an adapter (checkpoint::is_peft_folder).
bool is_model_folder(const std::filesystem::path& path);

// The configuration to open such a folder with: `overrides`, e.g. chat.template=plain, of an otherwise default
// configuration of task polychromic. For an adapter, r, alpha, targets and base model are those of its
// adapter_config.json, unless hf.model names the base, and the tokenizer is its own if it has one. Error(usage) for a
// base beside a whole model, Error(checkpoint) if the adapter's base is not here; throws as load_config and
// read_peft_config.
config::Config model_folder_config(const std::filesystem::path& folder, const std::vector<std::string>& overrides);

// A folder's model, or an adapter with its base model, whose weights are kept only in the compute dtype. Rows have the
// model's positions, up to 8,192 or `positions`. Throws as model_folder_config and open_frozen_lm.
CausalInference open_model_folder(const std::filesystem::path& folder, const std::vector<std::string>& overrides,
                                  int64_t positions = 0);
// The same for stored.foreign. With stored.place.tensor each rank opens its part.
CausalInference open_model_folder(const StoredModel& stored, int64_t positions = 0);

}  // namespace hrm::tasks
