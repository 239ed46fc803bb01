#pragma once
// Causal language models for reading and writing text: of a checkpoint of the polychromic task, or of a folder of the
// transformers library.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "hrm/config/config.h"
#include "hrm/data/chat_template.h"
#include "hrm/runtime/device.h"
#include "hrm/tasks/causal_lm.h"

namespace hrm::tasks {

struct CausalInference {
  config::Config config;
  std::filesystem::path checkpoint;  // of a folder: itself
  int64_t step = -1;                 // -1: of a folder
  bool averaged = false;
  Runtime runtime;
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

// A folder's model, whose weights stay in the compute dtype alone, for rows of `positions`; 0: what it was made for, up
// to 8,192. `overrides` of an otherwise default configuration of task polychromic, e.g. chat.template=plain.
CausalInference open_hf_folder(const std::filesystem::path& folder, const std::vector<std::string>& overrides,
                               int64_t positions = 0);

}  // namespace hrm::tasks
