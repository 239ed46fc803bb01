#include <algorithm>
#include <filesystem>
#include <iostream>
#include <utility>

#include "commands/dashboard/page.h"
#include "commands/dashboard/run_files.h"
#include "commands/dashboard/runs.h"
#include "commands/dashboard/server.h"
#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/base/log.h"
#include "hrm/base/text.h"
#include "hrm/commands/commands.h"

namespace hrm::commands {

int run_dashboard(const DashboardOptions& options) {
  dashboard::RunFiles files(options.runs);
  const size_t found = files.list().size();
  // A server can wait for the first run; a page of nothing is a mistake.
  require(found > 0 || options.export_file.empty(), ExitCode::data, "no run below '", printable(options.runs),
          "': no folder has a file metrics.jsonl");
  dashboard::Runs runs(std::move(files));
  if (!options.export_file.empty()) {
    // One run has 1,000 columns; many runs share what a browser opens quickly.
    const size_t columns = std::clamp<size_t>(8000 / found, 100, 1000);
    write_text_atomic(options.export_file, dashboard::exported_page(runs.everything(columns)));
    log::info("wrote ", found, found == 1 ? " run" : " runs");
    std::cout << options.export_file << "\n";
    return static_cast<int>(ExitCode::done);
  }
  if (found == 0) log::warn("no run below '", printable(options.runs), "' yet; the page waits for one");
  dashboard::serve(runs, {.address = options.listen, .port = static_cast<int>(options.port)});
  return static_cast<int>(ExitCode::done);
}

}  // namespace hrm::commands
