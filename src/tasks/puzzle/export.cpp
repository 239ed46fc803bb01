// The forms that a puzzle model is exported in.
#include "hrm/checkpoint/export.h"
#include "hrm/base/error.h"
#include "hrm/base/text.h"
#include "tasks/puzzle/spec.h"

namespace hrm::tasks {

std::string export_puzzle(const StoredModel& stored, const ExportRequest& request) {
  require(request.to != "hf", ExitCode::usage,
          "transformers has no architecture for puzzle models; use --to safetensors, pt or torchscript");
  const ChosenWeights chosen = choose_weights(stored.folder, request.weights);
  if (request.to == "checkpoint") {
    export_checkpoint(stored, request, chosen);
  } else if (request.to == "safetensors") {
    checkpoint::export_safetensors(chosen.values(), request.out);
  } else if (request.to == "pt") {
    checkpoint::export_pt(chosen.values(), request.out);
  } else {
    const config::ModelConfig& model = stored.config.model;
    require(model.start_std == 0 && model.path_noise == 0, ExitCode::usage,
            "the model draws random states (model.start_std ", model.start_std, ", model.path_noise ", model.path_noise,
            "), which a TorchScript module cannot repeat; use --to safetensors or pt");
    checkpoint::export_torchscript(stored.config.model, chosen.values(), request.out);
  }
  return exported_text(stored, chosen.averaged);
}

}  // namespace hrm::tasks
