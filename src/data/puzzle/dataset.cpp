#include "hrm/data/dataset.h"

#include <algorithm>
#include <array>
#include <span>

#include "data/other_data.h"
#include "data/puzzle/dataset_directory.h"
#include "data/puzzle/token_rows.h"
#include "hrm/base/error.h"
#include "hrm/base/hash.h"
#include "hrm/data/chat_dataset.h"
#include "hrm/data/maze.h"
#include "hrm/data/puzzle_csv.h"

namespace hrm::data {
namespace {

// The check for second solutions takes 10 to 50 us per puzzle. Above this many puzzles it would slow down each start;
// `hrm_train data sudoku` checks them instead.
constexpr int64_t kSolveAtOpen = 20'000;

class MemoryDataset final : public PuzzleDataset {
 public:
  MemoryDataset(PuzzleRows rows, const std::string& origin)
      : inputs_(std::move(rows.inputs)), labels_(std::move(rows.labels)) {
    meta_ = rows.meta;
    kind_ = rows.kind;
    origin_ = origin;
    identifiers_ = {"<blank>"};
    group_indices_.assign(rows.group_indices.begin(), rows.group_indices.end());
    puzzle_indices_.assign(rows.puzzle_indices.begin(), rows.puzzle_indices.end());
    puzzle_identifiers_ = std::move(rows.puzzle_identifiers);
    parts_ = {{"all", {0, num_examples()}}};
    finish_index();
  }

  void example(int64_t index, int32_t* inputs, int32_t* labels) const override {
    const size_t offset = static_cast<size_t>(index * meta_.seq_len);
    const TokenRow row{meta_, index};
    read_inputs(row, inputs_.data() + offset, origin_, inputs);
    read_labels(row, labels_.data() + offset, origin_, labels);
  }

 private:
  std::vector<uint8_t> inputs_, labels_;
};

}  // namespace

const char* name(PuzzleKind kind) {
  switch (kind) {
    case PuzzleKind::sudoku:
      return "sudoku";
    case PuzzleKind::maze:
      return "maze";
    case PuzzleKind::arc:
      return "arc";
    case PuzzleKind::unknown:
      break;
  }
  return "unknown";
}

int64_t PuzzleDataset::puzzle_of_example(int64_t example) const {
  if (one_example_per_puzzle_) return example;
  const auto above = std::upper_bound(puzzle_indices_.begin(), puzzle_indices_.end(), example);
  return above - puzzle_indices_.begin() - 1;
}

void PuzzleDataset::finish_index() {
  require(num_examples() > 0, ExitCode::data, origin_, ": holds no puzzles");
  one_example_per_puzzle_ = num_puzzles() == num_examples();
  for (int64_t puzzle = 0; puzzle < num_puzzles() && one_example_per_puzzle_; ++puzzle) {
    one_example_per_puzzle_ = examples_of_puzzle(puzzle).size() == 1;
  }
}

void PuzzleRows::add_puzzle(const std::vector<uint8_t>& input, const std::vector<uint8_t>& label) {
  inputs.insert(inputs.end(), input.begin(), input.end());
  labels.insert(labels.end(), label.begin(), label.end());
  puzzle_identifiers.push_back(static_cast<int32_t>(meta.blank_identifier_id));
  puzzle_indices.push_back(puzzle_indices.back() + 1);
}

void PuzzleRows::end_group() {
  group_indices.push_back(static_cast<int32_t>(puzzle_identifiers.size()));
}

std::shared_ptr<PuzzleDataset> dataset_from_rows(PuzzleRows rows, const std::string& origin) {
  return std::make_shared<MemoryDataset>(std::move(rows), origin);
}

std::shared_ptr<PuzzleDataset> open_dataset(const std::filesystem::path& path, const std::string& split,
                                            const config::DataConfig& config, uint64_t seed) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) return open_dataset_directory(path, split, config);
  require(std::filesystem::exists(path, ignored), ExitCode::data, path.string(),
          ": no such file or directory; give a CSV file or a data set directory (hrm_train data sudoku makes one)",
          other_data(path));
  require(is_puzzle_csv(path), ExitCode::data, path.string(),
          ": is neither a directory nor a .csv file, so it cannot be a data set of puzzles",
          is_chat_path(path) ? "; prompts and responses are read with task=polychromic" : other_data(path));
  PuzzleCsvOptions options;
  options.kind = config.kind;
  options.box_rows = config.box_rows;
  options.box_cols = config.box_cols;
  options.question_field = config.question_field;
  options.answer_field = config.answer_field;
  options.check_unique_up_to = kSolveAtOpen;
  if (split == "train") {
    options.min_rating = config.min_rating;
    options.subsample = config.subsample;
    options.seed = seed;
  }
  return dataset_from_rows(read_puzzle_csv(path, options).rows, path.string());
}

std::string PuzzleDataset::digest() const {
  Hasher hasher;
  const auto add = [&](const auto& values) { hasher.update(std::as_bytes(std::span(values))); };
  const std::array<int64_t, 6> sizes{meta_.seq_len, meta_.vocab_size, meta_.pad_id, meta_.num_puzzle_identifiers,
                                     num_groups(),  num_puzzles()};
  add(sizes);
  add(group_indices_);
  add(puzzle_indices_);
  add(puzzle_identifiers_);
  const auto length = static_cast<size_t>(meta_.seq_len);
  std::vector<int32_t> row(2 * length);
  for (int64_t i = 0; i < num_examples(); ++i) {
    example(i, row.data(), row.data() + length);
    add(row);
  }
  return hasher.hex();
}

}  // namespace hrm::data
