// hrm_train export: the weights of a checkpoint as a file for other programs.
#include <iostream>

#include "hrm/base/error.h"
#include "hrm/base/log.h"
#include "hrm/checkpoint/checkpoint.h"
#include "hrm/checkpoint/export.h"
#include "hrm/config/load.h"
#include "hrm/train/commands.h"

namespace hrm::train {

int run_export(const ExportOptions& options) {
  const bool known = options.to == "torchscript" || options.to == "safetensors" || options.to == "pt";
  require(known, ExitCode::usage, "'", options.to, "' is no export format; use torchscript, safetensors or pt");
  require(options.weights == "auto" || options.weights == "raw" || options.weights == "ema", ExitCode::usage, "'",
          options.weights, "' is no set of weights; use auto, raw or ema");
  require(!options.out.empty(), ExitCode::usage, "--out needs the file to write");

  const checkpoint::FoundCheckpoint found = checkpoint::open_checkpoint(options.checkpoint);
  const checkpoint::ModelWeights weights = checkpoint::load_weights(found.dir);
  require(options.weights != "ema" || !weights.ema.empty(), ExitCode::checkpoint, "the checkpoint ", found.dir,
          " holds no averaged weights; use --weights raw");
  const bool averaged = options.weights != "raw" && !weights.ema.empty();
  const auto& chosen = averaged ? weights.ema : weights.raw;

  if (options.to == "safetensors") {
    checkpoint::export_safetensors(chosen, options.out);
  } else if (options.to == "pt") {
    checkpoint::export_pt(chosen, options.out);
  } else {
    const config::LoadedConfig loaded =
        config::config_from_json_text(found.meta.config_json, (found.dir / "config.json").string());
    checkpoint::export_torchscript(loaded.config.model, chosen, options.out);
  }
  log::info("wrote the ", averaged ? "averaged" : "raw", " weights of step ", found.meta.step, " (", chosen.size(),
            " tensors) to ", options.out);
  std::cout << options.out << "\n";
  return static_cast<int>(ExitCode::done);
}

}  // namespace hrm::train
