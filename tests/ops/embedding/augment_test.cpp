#include "hrm/ops/augment.h"

#include <set>

#include "ops/embedding/augment_cases.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

TEST(Augment, FollowsTheDefinition) {
  for (const AugmentCase& one : augment_cases()) {
    AugmentData data = make_augment_data(one, 60, at::kCPU);
    run_augment(data, one.how);
    const int64_t side = square_root(one.cells);
    std::set<int> transforms;
    for (int64_t row = 0; row < 60; ++row) {
      const int64_t entry = data.picks[row][0].item<int64_t>();
      CounterRng rng(one.how.seed, Stream::augment, static_cast<uint64_t>(data.picks[row][1].item<int64_t>()));
      SudokuSymmetry symmetry{};
      int transform = 0;
      if (one.how.kind == AugmentKind::sudoku) {
        draw_sudoku_symmetry(rng, static_cast<int>(one.how.box_rows), static_cast<int>(one.how.box_cols), symmetry);
        transform = symmetry.transpose;
      } else if (one.how.kind == AugmentKind::dihedral) {
        transform = static_cast<int>(rng.below(8));
      }
      const ArcCopy copy = arc_copy_of(data.picks[row][1].item<int64_t>());
      if (one.how.kind == AugmentKind::arc) transform = copy.transform;
      transforms.insert(transform);
      const auto expected = [&](const at::Tensor& table, int64_t around) {
        if (one.how.kind == AugmentKind::arc) return expected_arc(table[entry], copy, side, around);
        if (one.how.kind == AugmentKind::sudoku) return expected_sudoku(table[entry], symmetry, side);
        if (one.how.kind == AugmentKind::dihedral) return expected_dihedral(table[entry], transform, side);
        return table[entry];
      };
      const std::string what = cat(one.cells, " cells, row ", row);
      expect_same_bits(data.inputs[row], expected(data.table_inputs, 0), what);
      expect_same_bits(data.labels[row], expected(data.table_labels, kArcIgnored), what);
      EXPECT_EQ(data.identifiers[row].item<int32_t>(), data.picks[row][2].item<int64_t>());
    }
    const bool square = one.how.box_rows == one.how.box_cols;
    const size_t kinds = one.how.kind == AugmentKind::sudoku     ? (square ? 2 : 1)
                         : one.how.kind == AugmentKind::dihedral ? 8
                         : one.how.kind == AugmentKind::arc      ? 8
                                                                 : 1;
    EXPECT_EQ(transforms.size(), kinds) << one.cells << " cells";
  }
}

TEST(Augment, BadInputIsNamed) {
  const AugmentCase one = augment_cases().front();
  const auto message = [&](const std::function<void(AugmentData&, Augmentation&)>& spoil) {
    AugmentData data = make_augment_data(one, 4, at::kCPU);
    Augmentation how = one.how;
    spoil(data, how);
    return error_of([&] { run_augment(data, how); });
  };
  ASSERT_EQ(message([](AugmentData&, Augmentation&) {}), "");
  expect_message(message([](AugmentData& d, Augmentation&) { d.picks = d.picks.slice(1, 0, 2).contiguous(); }),
                 {"hrm::augment_rows_", "[4, 2]"});
  expect_message(message([](AugmentData& d, Augmentation&) { d.inputs = d.inputs.slice(0, 1); }),
                 {"hrm::augment_rows_", "[3, 81]"});
  expect_message(message([](AugmentData& d, Augmentation&) { d.labels = d.labels.to(at::kLong); }),
                 {"hrm::augment_rows_", "labels", "Long"});
  expect_message(message([](AugmentData&, Augmentation& how) { how.box_rows = 2; }),
                 {"hrm::augment_rows_", "2x3", "81"});
  expect_message(message([](AugmentData& d, Augmentation&) { d.picks[2][0] = 40; }),
                 {"hrm::augment_rows_", "picks[2]", "row 40", "table of 40"});
  AugmentData data = make_augment_data(augment_cases().back(), 4, at::kCPU);
  expect_message(error_of([&] {
                   run_augment(data, {AugmentKind::dihedral, 0});
                 }),
                 {"hrm::augment_rows_", "97 cells", "square"});
  for (const int64_t cells : {97, 33 * 33}) {
    AugmentData wide = make_augment_data({{AugmentKind::none}, cells, 12}, 4, at::kCPU);
    expect_message(error_of([&] {
                     run_augment(wide, {AugmentKind::arc, 0});
                   }),
                   {"hrm::augment_rows_", cat(cells, " cells"), "at most 32 rows"});
  }
}

}  // namespace
}  // namespace hrm::ops
