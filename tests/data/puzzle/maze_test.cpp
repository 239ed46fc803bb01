#include "hrm/data/maze.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "data/data_support.h"
#include "hrm/data/dihedral.h"

namespace hrm::data {
namespace {

// 4x4 with one way round.
const std::string kQuestion =
    "S  #"
    "## #"
    "G  #"
    "####";
const std::string kMazeAnswer =
    "Soo#"
    "##o#"
    "Goo#"
    "####";

TEST(Maze, TokensFollowTheOfficialCharset) {
  const std::string charset = "# SGo";
  for (size_t i = 0; i < charset.size(); ++i) {
    EXPECT_EQ(maze_token(charset[i]), i + 1);
    EXPECT_EQ(maze_character(static_cast<int64_t>(i + 1)), charset[i]);
  }
  EXPECT_EQ(maze_token('x'), 0);
  expect_error(ExitCode::unexpected, {"maze token 0"}, [] { maze_character(0); });
}

TEST(Maze, Faults) {
  EXPECT_EQ(find_maze_fault(kQuestion), "");
  EXPECT_NE(find_maze_fault("S G").find("not a square grid"), std::string::npos);
  EXPECT_NE(find_maze_fault("SGx ").find("'x' at character 3"), std::string::npos);
  EXPECT_NE(find_maze_fault(kMazeAnswer).find("'o'"), std::string::npos);
  EXPECT_EQ(find_maze_fault("SS G"), "has 2 'S' and 1 'G' instead of one each");
}

TEST(Maze, ShortestPath) {
  const ShortestPath path = shortest_path(kQuestion);
  EXPECT_EQ(path.length, 6);
  EXPECT_TRUE(path.unique);
  EXPECT_EQ(path.cells, (std::vector<int>{0, 1, 2, 6, 10, 9, 8}));
  const ShortestPath open = shortest_path("S  G");
  EXPECT_EQ(open.length, 2);  // 2x2: down or right first
  EXPECT_FALSE(open.unique);
  EXPECT_EQ(shortest_path("S##G").length, -1);
}

TEST(Maze, ChecksAnswers) {
  EXPECT_TRUE(check_maze_answer(kQuestion, kMazeAnswer).valid);
  EXPECT_TRUE(check_maze_answer(kQuestion, kMazeAnswer).shortest);
  EXPECT_EQ(check_maze_answer(kQuestion, kMazeAnswer).length, 6);
  std::string broken = kMazeAnswer;
  broken[6] = ' ';
  EXPECT_FALSE(check_maze_answer(kQuestion, broken).valid);
  std::string through_wall = kMazeAnswer;
  through_wall[4] = 'o';
  EXPECT_FALSE(check_maze_answer(kQuestion, through_wall).valid);
  EXPECT_FALSE(check_maze_answer(kQuestion, kQuestion).valid);
  EXPECT_FALSE(check_maze_answer(kQuestion, "S").valid);
  // A valid way round that is not the shortest, and cells beside the path.
  const std::string field =
      "S   "
      "#   "
      "G   "
      "    ";
  const std::string detour =
      "Soo "
      "# o "
      "Goo "
      "    ";
  const std::string direct =
      "So  "
      "#o  "
      "Go  "
      "    ";
  EXPECT_TRUE(check_maze_answer(field, detour).valid);
  EXPECT_FALSE(check_maze_answer(field, detour).shortest);
  EXPECT_TRUE(check_maze_answer(field, direct).shortest);
  std::string stray = direct;
  stray[15] = 'o';
  EXPECT_FALSE(check_maze_answer(field, stray).valid);
}

TEST(Maze, GeneratesHardMazes) {
  for (uint64_t index = 0; index < 20; ++index) {
    CounterRng rng(1, Stream::generate, index);
    const Maze maze = generate_maze(30, 110, rng);
    ASSERT_EQ(find_maze_fault(maze.question), "");
    const ShortestPath path = shortest_path(maze.question);
    EXPECT_GT(path.length, 110);
    EXPECT_EQ(path.length, maze.path_length);
    EXPECT_TRUE(path.unique);
    const PathCheck check = check_maze_answer(maze.question, maze.answer);
    EXPECT_TRUE(check.valid);
    EXPECT_TRUE(check.shortest);
  }
}

TEST(Maze, SmallAndImpossibleSizes) {
  for (const int side : {3, 4, 7, 11}) {
    CounterRng rng(1, Stream::generate, side);
    EXPECT_EQ(generate_maze(side, 0, rng).question.size(), static_cast<size_t>(side * side));
  }
  CounterRng rng(1, Stream::generate, 0);
  expect_error(ExitCode::usage, {"no maze of size 10"}, [&] { generate_maze(10, 110, rng); });
  expect_error(ExitCode::usage, {"give 3 to 1024"}, [&] { generate_maze(1, 0, rng); });
}

TEST(Dihedral, KnownRotations) {
  const std::vector<int> grid{1, 2, 3, 4, 5, 6};                             // 2 x 3
  EXPECT_EQ(dihedral(1, 2, 3, grid), (std::vector<int>{3, 6, 2, 5, 1, 4}));  // numpy.rot90
  EXPECT_EQ(dihedral(4, 2, 3, grid), (std::vector<int>{3, 2, 1, 6, 5, 4}));
  EXPECT_EQ(dihedral(6, 2, 3, grid), (std::vector<int>{1, 4, 2, 5, 3, 6}));
}

TEST(Dihedral, InversesUndo) {
  std::vector<int> grid(15);
  std::iota(grid.begin(), grid.end(), 0);
  for (int transform = 0; transform < 8; ++transform) {
    const bool swaps = dihedral_swaps_axes(transform);
    const std::vector<int> turned = dihedral(transform, 3, 5, grid);
    EXPECT_EQ(dihedral(kDihedralInverse[transform], swaps ? 5 : 3, swaps ? 3 : 5, turned), grid) << transform;
    for (int other = 0; other < transform; ++other) EXPECT_NE(dihedral(other, 3, 5, grid), turned);
  }
  expect_error(ExitCode::unexpected, {"is not 0..7"}, [] { dihedral_source(8, 2, 2); });
}

TEST(Dihedral, AugmentedMazesStaySolved) {
  CounterRng rng(1, Stream::generate, 5);
  const Maze maze = generate_maze(9, 10, rng);
  DihedralAugmenter augmenter(9);
  std::set<std::string> seen;
  for (uint64_t sample = 0; sample < 100; ++sample) {
    std::vector<int32_t> inputs, labels;
    for (const char c : maze.question) inputs.push_back(maze_token(c));
    for (const char c : maze.answer) labels.push_back(maze_token(c));
    augmenter(3, sample, inputs.data(), labels.data());
    std::string question, answer;
    for (const int32_t token : inputs) question += maze_character(token);
    for (const int32_t token : labels) answer += maze_character(token);
    EXPECT_TRUE(check_maze_answer(question, answer).shortest);
    seen.insert(question);
  }
  EXPECT_EQ(seen.size(), 8u);
}

}  // namespace
}  // namespace hrm::data
