// hrm_train data arc and hrm_train data pictures.
#include "hrm/data/arc.h"

#include <algorithm>
#include <ostream>
#include <set>

#include "hrm/base/error.h"
#include "hrm/base/text.h"
#include "hrm/commands/data.h"
#include "hrm/data/arc_picture.h"

namespace hrm::data {

void run_data_arc(const ArcCommand& command, std::ostream& out) {
  require(!command.out.empty(), ExitCode::usage, "data arc: give --out, the folder to write");
  require(command.seed >= 0 && command.seed <= 0xFFFFFFFF, ExitCode::usage, "data arc: --seed ", command.seed,
          " is not within 0 to 4294967295");
  ArcBuildOptions options{.subsets = {command.subsets.begin(), command.subsets.end()},
                          .test = command.test,
                          .augment = command.augment,
                          .seed = command.seed,
                          .unsolved = command.unsolved,
                          .compact = command.compact};
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

void run_data_pictures(const PicturesCommand& command, std::ostream& out) {
  require(!command.out.empty(), ExitCode::usage, "data pictures: give --out, the folder to write");
  std::vector<ArcTask> known, unknown;
  std::vector<std::string> names;
  std::set<std::string> seen;
  const std::set<std::string> wanted(command.tasks.begin(), command.tasks.end());
  for (const std::string& path : command.subsets) {
    std::vector<ArcTask> tasks = read_arc_tasks(path, /*unsolved=*/true);
    std::vector<ArcTask>& list = arc_answers_known(tasks) ? known : unknown;
    for (ArcTask& task : tasks) {
      names.push_back(task.name);
      require(seen.insert(task.name).second, ExitCode::data, path, ": task ", printable_start(task.name),
              " is named twice; name each task once");
      if (wanted.empty() || wanted.contains(task.name)) list.push_back(std::move(task));
    }
  }
  for (const std::string& task : wanted) {
    if (seen.contains(task)) continue;
    const std::string near = nearest_name(task, names);
    fail(ExitCode::usage, "data pictures: --task '", printable_start(task), "' is none of the ", names.size(), " tasks",
         near.empty() ? std::string() : cat("; did you mean '", printable_start(near), "'?"));
  }
  for (const auto* tasks : {&known, &unknown}) require_new_arc_pictures(command.out, *tasks);
  write_arc_pictures(command.out, known);
  write_arc_pictures(command.out, unknown, {.known = false});
  out << command.out << ": " << known.size() + unknown.size() << " pictures\n";
}

}  // namespace hrm::data
