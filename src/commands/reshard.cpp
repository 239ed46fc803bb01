// hrm_train reshard: a checkpoint for another number of ranks.
#include "hrm/checkpoint/reshard.h"

#include <iostream>

#include "hrm/base/error.h"
#include "hrm/base/log.h"
#include "hrm/checkpoint/checkpoint.h"
#include "hrm/commands/commands.h"

namespace hrm::commands {

int run_reshard(const ReshardOptions& options) {
  namespace fs = std::filesystem;
  require(!options.out.empty(), ExitCode::usage, "--out needs the folder to write");
  std::error_code ignored;
  // A step folder is verified when it is read; a run folder's checkpoints are, to choose one.
  const fs::path asked = options.checkpoint;
  const fs::path dir =
      fs::exists(asked / checkpoint::kManifestFile, ignored) ? asked : checkpoint::open_checkpoint(asked).dir;
  checkpoint::reshard(dir, options.ranks, options.out);
  log::info("wrote ", dir.string(), " in ", options.ranks, options.ranks == 1 ? " part" : " parts", " to ",
            options.out);
  std::cout << options.out << "\n";
  return static_cast<int>(ExitCode::done);
}

}  // namespace hrm::commands
