// Boxes of tensors: their runs of elements, and their text.
#include "hrm/state/part.h"

#include <gtest/gtest.h>

#include "hrm/base/error.h"
#include "support/expect_error.h"

namespace hrm {
namespace {

using Runs = std::vector<StateRun>;
using test::expect_error;

TEST(StatePartRuns, AreAsFewAsThereCanBe) {
  EXPECT_EQ(runs_of({}, {3, 4}), (Runs{{0, 0, 12}}));
  const std::vector<int64_t> rows{2, 4};
  EXPECT_EQ(runs_of(rows_part(rows, 3, 8), rows), (Runs{{0, 12, 8}}));
  EXPECT_EQ(runs_of(run_part({3, 4}, 5, 4), {4}), (Runs{{0, 5, 4}}));
  EXPECT_EQ(runs_of(run_part({3, 4}, 0, 0), {0}), Runs());
  EXPECT_EQ(runs_of(run_part({}, 0, 1), {1}), (Runs{{0, 0, 1}}));
  // Columns: a run for each row.
  const std::vector<int64_t> columns{3, 2};
  EXPECT_EQ(runs_of(box_part(columns, {0, 2}, {3, 4}), columns), (Runs{{0, 2, 2}, {2, 6, 2}, {4, 10, 2}}));
  // The middle of three dimensions.
  const std::vector<int64_t> middle{2, 1, 4};
  EXPECT_EQ(runs_of(box_part(middle, {0, 2, 0}, {2, 3, 4}), middle), (Runs{{0, 8, 4}, {4, 20, 4}}));
  // A box that is narrower than the part it lies in.
  const StatePart narrow{.split = true, .sizes = {4, 4}, .boxes = {{{0, 1}, {2, 0}, {2, 3}}}};
  EXPECT_EQ(runs_of(narrow, {2, 4}), (Runs{{1, 8, 3}, {5, 12, 3}}));
  // A packed box: its rows follow each other here. One of whole rows is a run.
  const StatePart packed{.split = true, .sizes = {4, 4}, .boxes = {{{5}, {1, 2}, {3, 2}}, {{3}, {0, 2}, {1, 2}}}};
  EXPECT_EQ(runs_of(packed, {11}), (Runs{{3, 2, 2}, {5, 6, 2}, {7, 10, 2}, {9, 14, 2}}));
  EXPECT_EQ(runs_of({.split = true, .sizes = {4, 4}, .boxes = {{{1}, {1, 0}, {2, 4}}}}, {9}), (Runs{{1, 4, 8}}));
}

TEST(StatePartRuns, OfSeveralBoxesAreInTheOrderOfTheWhole) {
  // Heads of q, k and v in one matrix; two of the boxes are neighbours on both sides.
  const StatePart heads{.split = true,
                        .sizes = {12, 2},
                        .boxes = {{{4, 0}, {8, 0}, {2, 2}}, {{0, 0}, {0, 0}, {2, 2}}, {{2, 0}, {2, 0}, {2, 2}}}};
  EXPECT_EQ(runs_of(heads, {6, 2}), (Runs{{0, 0, 8}, {8, 16, 4}}));
  EXPECT_FALSE(holds_all(heads, {6, 2}));
  EXPECT_TRUE(holds_all(rows_part(std::vector<int64_t>{3, 2}, 0, 3), {3, 2}));
}

TEST(StatePartRuns, RefuseBoxesThatCannotBe) {
  const auto refused = [](const StateBox& box, const char* why) {
    const StatePart part{.split = true, .sizes = {4, 4}, .boxes = {box}};
    expect_error(ExitCode::unexpected, {why}, [&] { runs_of(part, {2, 4}); });
  };
  refused({{0, 0}, {3, 0}, {2, 4}}, "not inside the whole tensor");
  refused({{1, 0}, {0, 0}, {2, 4}}, "not inside the part");
  refused({{0, 0}, {0, 1}, {2, 4}}, "not inside the whole tensor");
  refused({{0}, {10}, {7}}, "not inside the whole tensor");
  refused({{5}, {0}, {4}}, "not inside the part");
  refused({{0, 0}, {0, INT64_MAX}, {1, 1}}, "not inside the whole tensor");
  refused({{0, 0}, {0}, {2, 4}}, "another number of places");
  refused({{0, 0, 0}, {0, 0, 0}, {1, 1, 1}}, "another number of dimensions");
  refused({{}, {}, {}}, "another number of places");
  refused({{3}, {0, 0}, {2, 3}}, "not inside the part");
  refused({{-1}, {0, 0}, {2, 3}}, "not inside the part");
  refused({{0}, {3, 0}, {2, 3}}, "not inside the whole tensor");
  refused({{0}, {0, 0}, {2, -3}}, "not inside the part");
  const StatePart twice{.split = true, .sizes = {4, 4}, .boxes = {{{0, 0}, {0, 0}, {1, 4}}, {{1, 0}, {0, 2}, {1, 2}}}};
  expect_error(ExitCode::unexpected, {"overlap"}, [&] { runs_of(twice, {2, 4}); });
}

TEST(StatePartText, ComesBack) {
  const StatePart heads{
      .split = true, .sizes = {24, 8}, .boxes = {{{0, 0}, {4, 0}, {4, 8}}, {{4, 0}, {12, 0}, {4, 8}}}};
  EXPECT_EQ(part_text(heads), "24x8 0,0>4,0:4x8 4,0>12,0:4x8");
  EXPECT_EQ(part_text(run_part({}, 0, 1)), "scalar 0>0:1");
  EXPECT_EQ(part_text({}), "");
  const StatePart packed{.split = true, .sizes = {4, 4}, .boxes = {{{5}, {1, 2}, {3, 2}}}};
  EXPECT_EQ(part_text(packed), "4x4 5>1,2:3x2");
  for (const StatePart& part : {heads, packed, run_part({}, 0, 1), run_part({}, 0, 0), run_part({3, 4}, 5, 4)}) {
    StatePart read;
    EXPECT_TRUE(parse_part(part_text(part), read));
    EXPECT_EQ(read, part);
  }
}

TEST(StatePartText, OtherTextsAreRefused) {
  for (const char* text : {"",
                           "x",
                           "3x",
                           "3x4x",
                           "-3",
                           "3x-4",
                           " 3",
                           "3  0>0:1",
                           "3 0>0",
                           "3 0:1",
                           "3 >0:1",
                           "3 0>0:1,",
                           "3 0>0:1:2",
                           "3 0 0:1",
                           "99999999999999999999",
                           "4294967296x4294967296",
                           "3 0>0:1x",
                           "scalar0",
                           "3 0>0:a",
                           "+3"}) {
    StatePart read;
    EXPECT_FALSE(parse_part(text, read)) << text;
  }
}

}  // namespace
}  // namespace hrm
