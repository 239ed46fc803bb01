#pragma once
// Pictures of ARC tasks as SVG: demonstrations and test pairs, inputs above outputs, and the answers beside the truth.

#include <filesystem>
#include <string>
#include <vector>

#include "hrm/data/arc.h"
#include "hrm/data/arc_votes.h"

namespace hrm::data {

struct ArcPictureOptions {
  bool known = true;                // false: test outputs are not known and are drawn as question marks
  const ArcVotes* votes = nullptr;  // adds the two best answers to each test pair
};

// Whether a test output is another grid than the [[0]] of an answer that is not known (read_arc_tasks).
bool arc_answers_known(const std::vector<ArcTask>& tasks);

// One SVG of a task with its demonstrations and test pairs. Answers are right or wrong and have their votes; a cell
// that differs from the truth has a mark. Equal arguments give equal bytes.
std::string arc_picture(const ArcTask& task, const ArcPictureOptions& options = {});

// The name of a task's file: "TASK.svg". Bytes that a plain file name has not are written as %XX.
std::string arc_picture_file(const std::string& task);

// Makes the folder and checks that the pictures of these tasks can be new files there. Throws Error(usage) where one
// stands there already, and Error(environment) for a folder that cannot be made or written.
void require_new_arc_pictures(const std::filesystem::path& folder, const std::vector<ArcTask>& tasks);
// A file for each task. Throws Error(environment).
void write_arc_pictures(const std::filesystem::path& folder, const std::vector<ArcTask>& tasks,
                        const ArcPictureOptions& options = {});

}  // namespace hrm::data
