#pragma once
// Causal language models for reading and writing text: of a checkpoint of the polychromic task, or of a folder of the
// transformers or the PEFT library.

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

// The newest checkpoint of a run, or a checkpoint's own folder, of task polychromic. `overrides`: of its configuration,
// e.g. hf.model=DIR where the frozen model lies elsewhere now. An adapter is as it was trained, beside the frozen
// weights. Rows have the positions of the training, or 8,192 where that is more and the model was made for as many.
// Throws as open_causal_lm, Error(usage) for a model of another task, Error(checkpoint) for weights that are
// not the configuration's.
CausalInference open_causal_checkpoint(const std::filesystem::path& run_or_step,
                                       const std::vector<std::string>& overrides, const std::string& weights);

// Such a folder, or that of an adapter (checkpoint::is_peft_folder).
bool is_model_folder(const std::filesystem::path& path);

// What such a folder is opened with: `overrides`, e.g. chat.template=plain, of an otherwise default configuration of
// task polychromic. Of an adapter, r, alpha, targets and the model beside it are as its adapter_config.json says,
// unless hf.model names that model's folder, and the tokenizer is its own where it has one. Error(usage) for a base
// beside a whole model, Error(checkpoint) where the adapter's is not here; throws as load_config and read_peft_config.
config::Config model_folder_config(const std::filesystem::path& folder, const std::vector<std::string>& overrides);

// A folder's model, or an adapter beside the model that it is for, whose weights stay in the compute dtype alone. Rows
// have what the model was made for, up to 8,192 or `positions`. Throws as model_folder_config and open_frozen_lm.
CausalInference open_model_folder(const std::filesystem::path& folder, const std::vector<std::string>& overrides,
                                  int64_t positions = 0);

}  // namespace hrm::tasks
