#pragma once
// Mazes on square grids of characters: '#' wall, ' ' free, 'S' start, 'G' goal, 'o' path. Tokens as in the official
// layout: 1 + position in "# SGo", 0 = PAD. Moves go up, down, left and right.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "hrm/base/philox.h"

namespace hrm::data {

inline constexpr std::string_view kMazeCharset = "# SGo";
inline constexpr int64_t kMazeVocabSize = 6;

// A maze is its text, side * side characters in row order.
struct Maze {
  std::string question;     // no 'o'
  std::string answer;       // the same with the shortest path in 'o'
  int64_t path_length = 0;  // moves from S to G
};

// The side of a square grid of this many cells; 0 if it is not square.
int maze_side(size_t cells);

// What is wrong with a question: another character, not square, not exactly one 'S' and one 'G'. Empty when nothing is.
std::string find_maze_fault(std::string_view question);

struct ShortestPath {
  int64_t length = -1;  // moves; -1 = G cannot be reached
  bool unique = false;
  std::vector<int> cells;  // from S to G, both included; one of the shortest
};
ShortestPath shortest_path(std::string_view question);

struct PathCheck {
  bool valid = false;     // the question is unchanged but for 'o' on free cells, and these are one simple path S to G
  bool shortest = false;  // and no path is shorter
  int64_t length = -1;    // moves of a valid path
};
PathCheck check_maze_answer(std::string_view question, std::string_view answer);

// A random maze whose shortest path is unique and longer than min_path moves. Corridors come from randomised
// depth-first search on a lattice; some walls are opened to make detours. Start and goal are drawn among all pairs that
// are far enough apart. Throws Error(usage) if no such maze is found.
Maze generate_maze(int side, int64_t min_path, CounterRng& rng);

// Text to tokens and back. `token` must be 1..5: maze_character throws Error(unexpected) otherwise.
uint8_t maze_token(char character);  // 0 for a character outside the set
char maze_character(int64_t token);

// Lines of the grid, for people.
std::string draw_maze(std::string_view text);

}  // namespace hrm::data
