#pragma once
// Mazes on square grids of characters: '#' wall, ' ' free, 'S' start, 'G' goal, 'o' path. Tokens follow the official
// layout: 1 + index in "# SGo", 0 = PAD. Moves go up, down, left and right.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "hrm/base/philox.h"

namespace hrm::data {

inline constexpr std::string_view kMazeCharset = "# SGo";
inline constexpr int64_t kMazeVocabSize = 6;

// A maze as text: side * side characters in row order.
struct Maze {
  std::string question;     // no 'o'
  std::string answer;       // the question with the shortest path as 'o'
  int64_t path_length = 0;  // moves from S to G
};

// The side of a square grid with this many cells; 0 if the number is not a square.
int maze_side(size_t cells);

// What is wrong with a question: an unknown character, not square, not exactly one 'S' and one 'G'. Empty if valid.
std::string find_maze_fault(std::string_view question);

struct ShortestPath {
  int64_t length = -1;  // in moves; -1 = G cannot be reached
  bool unique = false;
  std::vector<int> cells;  // one shortest path from S to G, both included
};
ShortestPath shortest_path(std::string_view question);

struct PathCheck {
  bool valid = false;     // only free cells changed, to 'o', and the path is one simple path from S to G
  bool shortest = false;  // valid, and no path is shorter
  int64_t length = -1;    // moves of a valid path
};
PathCheck check_maze_answer(std::string_view question, std::string_view answer);

// Generates a random maze whose shortest path is unique and longer than min_path moves. Corridors come from randomized
// depth-first search on a lattice; some walls are opened to make detours. Start and goal are drawn among all pairs that
// are far enough apart. Throws Error(usage) if no such maze is found.
Maze generate_maze(int side, int64_t min_path, CounterRng& rng);

// Converts text to tokens and back. `token` must be 1..5; otherwise maze_character throws Error(unexpected).
uint8_t maze_token(char character);  // 0 for an unknown character
char maze_character(int64_t token);

// The grid in lines, for display.
std::string draw_maze(std::string_view text);

}  // namespace hrm::data
