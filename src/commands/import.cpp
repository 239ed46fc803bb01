// hrm_train import: an official HRM, TRM or URM checkpoint becomes a run folder that eval, solve, export and train
// take.
#include <iostream>

#include "hrm/base/error.h"
#include "hrm/base/log.h"
#include "hrm/checkpoint/checkpoint.h"
#include "hrm/checkpoint/import.h"
#include "hrm/commands/commands.h"
#include "hrm/config/load.h"

namespace hrm::commands {

int run_import(const ImportOptions& options) {
  require(!options.out.empty(), ExitCode::usage, "--out needs the run folder to make");
  require(checkpoint::list_checkpoints(options.out).empty(), ExitCode::usage, "the folder '", options.out,
          "' already holds checkpoints; choose another --out");
  std::vector<std::string> files;
  if (!options.config.empty()) files.push_back(options.config);
  const config::LoadedConfig loaded = config::load_config(files, options.overrides);
  const checkpoint::OfficialModel model = checkpoint::read_official(options.path, options.from, loaded.config.model);

  int64_t values = 0;
  for (const auto& [name, tensor] : model.weights.raw) values += tensor.numel();
  checkpoint::CheckpointMeta meta;
  meta.config_json = loaded.to_json();
  meta.info = {{"program", cat("hrm_train ", build_info("version"), " ", build_info("commit"))},
               {"imported_from", std::filesystem::path(options.path).filename().string()},
               {"model", cat(loaded.config.model.arch, ", ", values, " values")}};
  const std::filesystem::path dir = checkpoint::save_weights(options.out, model.weights, meta, 1);
  log::info("read ", model.weights.raw.size(), " tensors (", values, " values, vocabulary ", model.dims.vocab_size,
            ", ", model.dims.num_puzzle_identifiers, " puzzle identifiers) from ", options.path);
  log::info("next: hrm_train eval or solve with --checkpoint ", options.out, ", or train --init ", dir.string());
  std::cout << dir.string() << "\n";
  return static_cast<int>(ExitCode::done);
}

}  // namespace hrm::commands
