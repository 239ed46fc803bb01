#include <gtest/gtest.h>

#include "data/data_support.h"
#include "support/python.h"
#include "support/temp_dir.h"

namespace hrm::data {
namespace {

// What the official loader does with a directory: np.load with mmap, json, and its own index arithmetic.
TEST(Dataset, PythonReadsWrittenDirectories) {
  if (test::python_with_torch().empty()) GTEST_SKIP() << "no Python with numpy beside the torch wheel";
  const test::TempDir dir;
  const auto csv = fixture("dataset_sudoku/source_train.csv");
  const auto dataset = open_dataset(csv, "train", config::DataConfig());
  PuzzleRows rows;
  rows.meta = dataset->meta();
  for (int64_t i = 0; i < dataset->num_examples(); ++i) {
    std::vector<int32_t> inputs(81), labels(81);
    dataset->example(i, inputs.data(), labels.data());
    rows.add_puzzle({inputs.begin(), inputs.end()}, {labels.begin(), labels.end()});
    rows.end_group();
  }
  write_dataset(dir / "set", "train", rows);
  const auto result = test::run_python(dir / "check.py", R"(
import json, os, sys
import numpy as np
root, csv = sys.argv[1:]
meta = json.load(open(os.path.join(root, "train", "dataset.json")))
assert json.load(open(os.path.join(root, "identifiers.json"))) == ["<blank>"]
assert meta["sets"] == ["all"] and meta["pad_id"] == 0 and meta["ignore_label_id"] == 0, meta
load = lambda n: np.load(os.path.join(root, "train", f"all__{n}.npy"), mmap_mode="r")
inputs, labels = load("inputs"), load("labels")
lines = [l.split(",") for l in open(csv).read().split()[1:]]
assert inputs.shape == labels.shape == (len(lines), meta["seq_len"]) and inputs.dtype == np.uint8
for i, (_, q, a, _) in enumerate(lines):
    assert [int(c) + 1 for c in q.replace(".", "0")] == inputs[i].tolist()
    assert [int(c) + 1 for c in a] == labels[i].tolist()
for n in ("puzzle_indices", "group_indices"):
    assert load(n).dtype == np.int32 and load(n).tolist() == list(range(len(lines) + 1))
assert load("puzzle_identifiers").tolist() == [0] * len(lines)
assert meta["total_groups"] == meta["total_puzzles"] == len(lines) and meta["mean_puzzle_examples"] == 1
print("good")
)",
                                       (dir / "set").string() + " " + csv.string());
  EXPECT_EQ(result.output, "good\n");
}

}  // namespace
}  // namespace hrm::data
