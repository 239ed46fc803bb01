// Kinds of cases that belong to the data module.

#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "hrm/data/dihedral.h"
#include "hrm/data/sampler.h"
#include "hrm/data/stream.h"
#include "hrm/data/sudoku_symmetry.h"
#include "hrm/data/test_reader.h"
#include "parity/dataset_case.h"

namespace hrm::parity {
namespace {

using data::Grid;

std::vector<uint8_t> batch_bytes(const at::Tensor& tensor) {
  const at::Tensor bytes = tensor.to(at::kByte).contiguous();
  const uint8_t* begin = bytes.const_data_ptr<uint8_t>();
  return {begin, begin + bytes.numel()};
}

// Puzzles, solutions and the draws that turned them into augmented ones.
void check_sudoku_augment(const Case& c) {
  const at::Tensor& boards = c.at("board");
  const int64_t side = boards.size(1);
  const nlohmann::json& config = c.json["config"];
  const data::SudokuGeometry geometry =
      data::sudoku_geometry(side * side, config.value("box_rows", 0), config.value("box_cols", 0));
  const auto boolean = [](const at::Tensor& tensor) { return tensor.to(at::kLong).item<int64_t>() != 0; };
  for (int64_t i = 0; i < boards.size(0); ++i) {
    data::SudokuSymmetry symmetry;
    const auto copy = [&](const char* name, auto& to) {
      const std::vector<uint8_t> from = batch_bytes(c.at(name)[i]);
      std::copy(from.begin(), from.end(), std::begin(to));
    };
    copy("digit_map", symmetry.digit_map);
    copy("row_perm", symmetry.row_perm);
    copy("col_perm", symmetry.col_perm);
    symmetry.transpose = boolean(c.at("transpose")[i]);
    for (const auto& [from, to] : {std::pair{"board", "out_board"}, {"solution", "out_solution"}}) {
      const Grid got = data::apply_symmetry(geometry, symmetry, batch_bytes(c.at(from)[i]));
      EXPECT_EQ(data::format_grid(got), data::format_grid(batch_bytes(c.at(to)[i]))) << c.name << " " << to << " " << i;
    }
    // The two are one puzzle up to symmetry.
    if (data::has_canonical_form(geometry)) {
      EXPECT_EQ(data::canonical_form(geometry, batch_bytes(c.at("solution")[i])),
                data::canonical_form(geometry, batch_bytes(c.at("out_solution")[i])));
    }
  }
}

void check_dihedral(const Case& c) {
  int grids = 0;
  for (const auto& [name, grid] : c.tensors) {
    if (name.find('.') != std::string::npos) continue;
    ++grids;
    const int rows = static_cast<int>(grid.size(0)), cols = static_cast<int>(grid.size(1));
    for (int transform = 0; transform < 8; ++transform) {
      const at::Tensor& want = c.at(name + ".t" + std::to_string(transform));
      EXPECT_EQ(data::dihedral_swaps_axes(transform) ? cols : rows, want.size(0)) << name << " " << transform;
      EXPECT_EQ(data::dihedral(transform, rows, cols, batch_bytes(grid)), batch_bytes(want))
          << name << " " << transform;
      const int inverse = data::kDihedralInverse[transform];
      EXPECT_EQ(inverse, c.json["config"]["inverse_id"][transform].get<int>());
      EXPECT_EQ(
          data::dihedral(inverse, static_cast<int>(want.size(0)), static_cast<int>(want.size(1)), batch_bytes(want)),
          batch_bytes(grid));
    }
  }
  EXPECT_GT(grids, 0);
}

// `<set>.<split>.world<N>.rank<R>`: what the official reader yields for a directory.
struct Reading {
  std::string prefix, set, split;
  int64_t ranks, rank;
};

std::vector<Reading> readings(const Case& c) {
  std::vector<Reading> found;
  const std::string last = ".inputs";
  for (const auto& [name, tensor] : c.tensors) {
    if (!name.ends_with(last)) continue;
    Reading reading;
    reading.prefix = name.substr(0, name.size() - last.size());
    const size_t first_dot = name.find('.'), second_dot = name.find('.', first_dot + 1);
    reading.set = name.substr(0, first_dot);
    reading.split = name.substr(first_dot + 1, second_dot - first_dot - 1);
    EXPECT_EQ(std::sscanf(name.c_str() + second_dot, ".world%ld.rank%ld.", &reading.ranks, &reading.rank), 2) << name;
    found.push_back(reading);
  }
  return found;
}

void check_test_reading(const Case& c, const Reading& reading, std::shared_ptr<const data::PuzzleDataset> dataset) {
  const at::Tensor& inputs = c.at(reading.prefix + ".inputs");
  data::TestReaderOptions options;
  options.global_batch_size = inputs.size(1) * reading.ranks;
  options.ranks = reading.ranks;
  options.rank = reading.rank;
  const data::TestReader reader(dataset, options);
  ASSERT_EQ(reader.num_batches(), inputs.size(0)) << reading.prefix;
  for (int64_t i = 0; i < reader.num_batches(); ++i) {
    const data::TestBatch batch = reader.batch(i);
    const std::string what = reading.prefix + " batch " + std::to_string(i);
    expect_equal(what + " inputs", batch.batch.inputs, inputs[i]);
    expect_equal(what + " labels", batch.batch.labels, c.at(reading.prefix + ".labels")[i]);
    expect_equal(what + " ids", batch.batch.puzzle_identifiers, c.at(reading.prefix + ".puzzle_identifiers")[i]);
    EXPECT_EQ(batch.global_valid_rows, c.at(reading.prefix + ".effective_batch")[i].item<int64_t>()) << what;
  }
}

// The order of training is numpy's; what must agree is that the rows are rows of the same groups, each group once.
void check_train_reading(const Case& c, const Reading& reading, std::shared_ptr<const data::PuzzleDataset> dataset) {
  const at::Tensor& inputs = c.at(reading.prefix + ".inputs");
  const int64_t length = dataset->meta().seq_len, epochs_rows = inputs.size(0) * inputs.size(1);
  std::map<std::vector<int32_t>, int64_t> group_of;
  std::vector<int32_t> row(2 * length);
  for (int64_t group = 0; group < dataset->num_groups(); ++group) {
    const data::IndexRange puzzles = dataset->puzzles_of_group(group);
    for (int64_t puzzle = puzzles.begin; puzzle < puzzles.end; ++puzzle) {
      const data::IndexRange examples = dataset->examples_of_puzzle(puzzle);
      for (int64_t example = examples.begin; example < examples.end; ++example) {
        dataset->example(example, row.data(), row.data() + length);
        group_of[row] = group;
      }
    }
  }
  const auto groups_in = [&](const at::Tensor& in, const at::Tensor& labels) {
    const at::Tensor rows =
        at::cat({in.reshape({-1, length}), labels.reshape({-1, length})}, 1).to(at::kInt).contiguous();
    std::vector<int64_t> groups;
    for (int64_t i = 0; i < rows.size(0); ++i) {
      const int32_t* begin = rows[i].const_data_ptr<int32_t>();
      const auto found = group_of.find({begin, begin + 2 * length});
      groups.push_back(found == group_of.end() ? -1 : found->second);
    }
    return groups;
  };
  const std::vector<int64_t> theirs = groups_in(inputs, c.at(reading.prefix + ".labels"));
  EXPECT_EQ(std::count(theirs.begin(), theirs.end(), -1), 0) << "their rows are not all in our data set";
  data::TrainStreamOptions options;
  options.global_batch_size = inputs.size(1) * reading.ranks;
  options.ranks = reading.ranks;
  options.rank = reading.rank;
  data::TrainStream stream(dataset, options, 0);
  std::vector<int64_t> ours;
  for (int64_t i = 0; i < inputs.size(0); ++i) {
    const data::StreamBatch batch = stream.next();
    for (const int64_t group : groups_in(batch.batch.inputs, batch.batch.labels)) ours.push_back(group);
  }
  EXPECT_EQ(std::count(ours.begin(), ours.end(), -1), 0);
  if (!dataset->one_example_per_puzzle() || reading.ranks > 1) return;
  // Both visit each group once per pass over the groups.
  const auto expect_passes = [&](const std::vector<int64_t>& order) {
    for (int64_t start = 0; start + dataset->num_groups() <= epochs_rows; start += dataset->num_groups()) {
      const std::set<int64_t> pass(order.begin() + start, order.begin() + start + dataset->num_groups());
      EXPECT_EQ(static_cast<int64_t>(pass.size()), dataset->num_groups());
    }
  };
  expect_passes(theirs);
  expect_passes(ours);
}

}  // namespace

void check_dataset(const Case& c) {
  const std::vector<Reading> all = readings(c);
  EXPECT_FALSE(all.empty());
  for (const Reading& reading : all) {
    const auto dataset = data::open_dataset(c.folder / reading.set, reading.split, config::DataConfig());
    const nlohmann::json& config = c.json["config"];
    EXPECT_EQ(dataset->meta().seq_len, config.value("seq_len", dataset->meta().seq_len));
    EXPECT_EQ(dataset->meta().vocab_size, config.value("vocab_size", dataset->meta().vocab_size));
    if (reading.split == "test") {
      check_test_reading(c, reading, dataset);
    } else {
      check_train_reading(c, reading, dataset);
    }
  }
}

namespace {

const RegisterKind kSudokuAugment("sudoku_augment", check_sudoku_augment);
const RegisterKind kDihedral("dihedral", check_dihedral);
const RegisterKind kDatasetSudoku("dataset_sudoku", check_dataset);

}  // namespace
}  // namespace hrm::parity
