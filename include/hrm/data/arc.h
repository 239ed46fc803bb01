#pragma once
// ARC-AGI tasks as token rows: the layout and the numbering of TRM (arXiv 2510.04871) and HRM (arXiv 2506.21734). No
// tensors here.

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace hrm::data {

inline constexpr int kArcSide = 30, kArcCells = kArcSide * kArcSide;
// Tokens: 0 = padding, 1 = the end of a grid, colour + 2.
inline constexpr int kArcColours = 10, kArcVocabSize = kArcColours + 2;

// Colours 0..9, row by row. At most 30 x 30; a grid that was read from an answer may be empty.
struct ArcGrid {
  int rows = 0, cols = 0;
  std::vector<uint8_t> cells;
  auto operator<=>(const ArcGrid&) const = default;
};

struct ArcPair {
  ArcGrid input, output;
};

struct ArcTask {
  std::string name;
  std::vector<ArcPair> train, test;
  bool test_first = false;  // the file gives "test" before "train", which decides about the order of examples
};

// Another colour for each colour, then one of the eight rotations and reflections (dihedral.h).
struct ArcAugmentation {
  int transform = 0;
  std::array<uint8_t, kArcColours> colours{0, 1, 2, 3, 4, 5, 6, 7, 8, 9};

  ArcGrid apply(const ArcGrid& grid) const;
  ArcGrid undo(const ArcGrid& grid) const;
};

// "task" or, for a copy, "task|||t3|||0497523618": transform and the new colours of 0 to 9.
std::string arc_name(const std::string& task, const ArcAugmentation& augmentation);
struct ArcName {
  std::string task;
  ArcAugmentation augmentation;
  bool copy = false;
};
// Throws Error(data) for a name of neither form.
ArcName parse_arc_name(const std::string& name);

// Writes the (900) tokens of a grid whose first cell stands at (row, col): below its last row and right of its last
// column stand tokens 1, as far as there is room.
void arc_tokens(const ArcGrid& grid, int row, int col, uint8_t* tokens);
// The grid of (900) tokens: of all rectangles at the first cell that hold colours alone the largest, the first of equal
// ones by rows. Empty if the first cell has no colour.
ArcGrid crop_arc(const int32_t* tokens);

// The tasks of a subset, in the order of the file, or by name: a file NAME_challenges.json with NAME_solutions.json
// beside it (Kaggle's form), or a folder of TASK.json (the original form). Test outputs may be missing with `unsolved`
// and are then the grid [[0]], as in the official builder. Throws Error(data), one sentence with file, task and place,
// for what is no grid of 1 to 30 rows and columns of colours 0 to 9, for missing outputs and for names that come twice.
std::vector<ArcTask> read_arc_tasks(const std::filesystem::path& path, bool unsolved);
// "evaluation" for ".../arc-agi_evaluation_challenges.json" and for ".../evaluation".
std::string arc_subset_name(const std::filesystem::path& path);

struct ArcBuildOptions {
  std::vector<std::filesystem::path> subsets;  // in this order
  std::vector<std::string> test;  // names of the subsets whose test pairs make the test split; others train on theirs
  int64_t augment = 1000;         // copies of each task, all different; fewer where 5 tries for each do not find them
  int64_t seed = 42;              // below 2^32, of NumPy's legacy generator
  bool unsolved = false;          // read_arc_tasks, of the test subsets
  bool compact = false;           // store each pair once, with a table of its copies
};
struct ArcBuildResult {
  int64_t tasks = 0, identifiers = 0, train_examples = 0, test_examples = 0;
  int64_t not_full = 0;  // tasks with fewer copies than asked for
};
// Writes a dataset folder with train/, test/, identifiers.json and test_puzzles.json, byte for byte as TRM's builder
// does with the same files, order and seed. (TRM's own bytes depend on Python's hash seed where the first subset is a
// test subset; then the train split comes first here.) Throws Error(data) as read_arc_tasks, also for a task in two
// subsets, Error(usage) for more copies than a folder can name, and Error(environment) where it cannot write.
//
// A compact folder holds the same examples in the same order, which readers make of a pair and a copy. Only this
// project reads it. "compact" is true in its dataset.json; all__inputs.npy and all__labels.npy have the pairs of the
// tasks, group by group, with grids at the first cell. all__copies.npy, (examples) int64, says how each example is made
// of its pair (ops::ArcCopy). The other files are those of the full folder.
ArcBuildResult build_arc(const ArcBuildOptions& options, const std::filesystem::path& out);

// The tasks of the test split with their answers, in such a folder.
inline constexpr const char* kArcTestPuzzles = "test_puzzles.json";
std::vector<ArcTask> read_arc_test_puzzles(const std::filesystem::path& file);

}  // namespace hrm::data
