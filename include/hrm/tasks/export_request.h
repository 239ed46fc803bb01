#pragma once
// What `hrm_train export` asks a task for.

#include <filesystem>
#include <string>
#include <vector>

#include "hrm/tasks/trained_model.h"

namespace hrm::tasks {

struct ExportRequest {
  std::string to;                 // torchscript, safetensors, pt, hf, peft, checkpoint
  std::string out;                // file to write; hf, peft, checkpoint: folder
  std::string weights = "auto";   // auto, raw, ema
  std::string dtype = "float32";  // or bfloat16, of hf and checkpoint only; of hf also fp8, int8
  std::string base;               // folder of the weights that an adapter is for; empty: as the run or adapter says
};

// "the averaged weights of step 100".
std::string exported_text(const StoredModel& stored, bool averaged);

// Writes the weights of a puzzle or language model as a checkpoint to hand on: kind weights, with the information that
// other machines need, and with `files` beside it. Its configuration names no folder of this machine.
void export_checkpoint(const StoredModel& stored, const ExportRequest& request, const ChosenWeights& chosen,
                       const std::vector<std::filesystem::path>& files = {});

// Writes the file or folder; returns what was written, for the log. Error(usage) for a form that the model has not.
using ExportFunction = std::string (*)(const StoredModel& stored, const ExportRequest& request);

}  // namespace hrm::tasks
