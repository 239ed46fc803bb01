// hrm_train data arc.
#include "hrm/data/arc.h"

#include <algorithm>
#include <ostream>

#include "hrm/base/error.h"
#include "hrm/base/text.h"
#include "hrm/commands/data.h"

namespace hrm::data {

void run_data_arc(const ArcCommand& command, std::ostream& out) {
  require(!command.out.empty(), ExitCode::usage, "data arc: give --out, the folder to write");
  require(command.seed >= 0 && command.seed <= 0xFFFFFFFF, ExitCode::usage, "data arc: --seed ", command.seed,
          " is not within 0 to 4294967295");
  ArcBuildOptions options{.subsets = {command.subsets.begin(), command.subsets.end()},
                          .test = command.test,
                          .augment = command.augment,
                          .seed = command.seed,
                          .unsolved = command.unsolved};
  std::vector<std::string> names;
  std::string listed;
  for (const auto& path : options.subsets) {
    names.push_back(arc_subset_name(path));
    listed += cat(listed.empty() ? "" : ", ", printable(names.back()));
  }
  for (const std::string& test : command.test) {
    require(std::count(names.begin(), names.end(), test) > 0, ExitCode::usage, "data arc: --test '", printable(test),
            "' is none of the subsets: ", listed);
  }
  const ArcBuildResult result = build_arc(options, command.out);
  out << command.out << ": ARC tasks on 30x30 cells, vocabulary " << kArcVocabSize << "\n"
      << result.tasks << " tasks, " << result.identifiers - 1 << " with their copies; " << result.train_examples
      << " training examples, " << result.test_examples << " test examples\n";
  if (result.not_full > 0) {
    out << result.not_full << " tasks have fewer than " << command.augment << " different copies\n";
  }
}

}  // namespace hrm::data
