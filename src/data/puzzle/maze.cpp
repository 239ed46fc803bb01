#include "hrm/data/maze.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "hrm/base/error.h"
#include "hrm/base/text.h"

namespace hrm::data {
namespace {

constexpr std::array<std::array<int, 2>, 4> kMoves{{{-1, 0}, {1, 0}, {0, -1}, {0, 1}}};

// Calls f(neighbour) for the existing cells above, below, left and right.
template <class F>
void for_neighbours(int cell, int side, F&& f) {
  for (const auto& [down, right] : kMoves) {
    const int row = cell / side + down, col = cell % side + right;
    if (row >= 0 && row < side && col >= 0 && col < side) f(row * side + col);
  }
}

struct Distances {
  std::vector<int> moves;      // moves from S; -1 = not reached
  std::vector<uint8_t> paths;  // number of shortest paths to this cell: 0, 1, 2 = at least two
};

Distances distances_from(std::string_view maze, int side, int start) {
  Distances result{std::vector<int>(maze.size(), -1), std::vector<uint8_t>(maze.size(), 0)};
  std::vector<int> queue{start};
  result.moves[start] = 0;
  result.paths[start] = 1;
  for (size_t head = 0; head < queue.size(); ++head) {
    const int cell = queue[head];
    for_neighbours(cell, side, [&](int next) {
      if (maze[next] == '#') return;
      if (result.moves[next] < 0) {
        result.moves[next] = result.moves[cell] + 1;
        queue.push_back(next);
      }
      if (result.moves[next] == result.moves[cell] + 1) {
        result.paths[next] = static_cast<uint8_t>(std::min(2, result.paths[next] + result.paths[cell]));
      }
    });
  }
  return result;
}

// Walks back from `goal` along decreasing distances.
std::vector<int> walk_back(const Distances& distances, int side, int goal) {
  std::vector<int> cells{goal};
  while (distances.moves[cells.back()] > 0) {
    const int cell = cells.back();
    for_neighbours(cell, side, [&](int next) {
      if (cells.back() == cell && distances.moves[next] == distances.moves[cell] - 1) cells.push_back(next);
    });
  }
  std::reverse(cells.begin(), cells.end());
  return cells;
}

// Carves corridors between the cells of a lattice of every second row and column.
std::string carve(int side, CounterRng& rng) {
  std::string maze(static_cast<size_t>(side) * side, '#');
  const int top = static_cast<int>(rng.below(2)), left = static_cast<int>(rng.below(2));
  const int rows = (side - top + 1) / 2, cols = (side - left + 1) / 2;
  const auto room = [&](int r, int c) { return (top + 2 * r) * side + left + 2 * c; };
  std::vector<uint8_t> visited(static_cast<size_t>(rows) * cols, 0);
  std::vector<int> stack{static_cast<int>(rng.below(static_cast<uint32_t>(rows * cols)))};
  visited[stack[0]] = 1;
  maze[room(stack[0] / cols, stack[0] % cols)] = ' ';
  std::vector<int> closed_walls;  // walls between two rooms
  while (!stack.empty()) {
    const int r = stack.back() / cols, c = stack.back() % cols;
    std::array<std::array<int, 2>, 4> order = kMoves;
    rng.shuffle(order);
    bool moved = false;
    for (const auto& [down, right] : order) {
      const int nr = r + down, nc = c + right;
      if (nr < 0 || nr >= rows || nc < 0 || nc >= cols || visited[nr * cols + nc]) continue;
      visited[nr * cols + nc] = 1;
      maze[room(r, c) + down * side + right] = ' ';
      maze[room(nr, nc)] = ' ';
      stack.push_back(nr * cols + nc);
      moved = true;
      break;
    }
    if (!moved) stack.pop_back();
  }
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < cols; ++c) {
      if (c + 1 < cols && maze[room(r, c) + 1] == '#') closed_walls.push_back(room(r, c) + 1);
      if (r + 1 < rows && maze[room(r, c) + side] == '#') closed_walls.push_back(room(r, c) + side);
    }
  }
  rng.shuffle(closed_walls);
  const size_t open = rng.below(static_cast<uint32_t>(rows * cols / 24 + 1));
  for (size_t i = 0; i < std::min(open, closed_walls.size()); ++i) maze[closed_walls[i]] = ' ';
  return maze;
}

}  // namespace

int maze_side(size_t cells) {
  size_t side = 0;
  while (side * side < cells) ++side;
  return side * side == cells ? static_cast<int>(side) : 0;
}

uint8_t maze_token(char character) {
  const size_t position = kMazeCharset.find(character);
  return position == std::string_view::npos ? 0 : static_cast<uint8_t>(position + 1);
}

char maze_character(int64_t token) {
  require(token >= 1 && token < kMazeVocabSize, ExitCode::unexpected, "maze token ", token, " is not 1..5");
  return kMazeCharset[token - 1];
}

std::string draw_maze(std::string_view text) {
  const int side = maze_side(text.size());
  std::string lines;
  for (int row = 0; row < side; ++row) {
    lines += text.substr(static_cast<size_t>(row) * side, side);
    lines += '\n';
  }
  return lines;
}

std::string find_maze_fault(std::string_view question) {
  if (maze_side(question.size()) == 0) return cat("has ", question.size(), " characters, which is not a square grid");
  int64_t starts = 0, goals = 0;
  for (size_t i = 0; i < question.size(); ++i) {
    if (question[i] == 'o' || maze_token(question[i]) == 0) {
      return cat("has '", printable(question.substr(i, 1)), "' at character ", i + 1,
                 "; a maze is written with '#', ' ', 'S' and 'G'");
    }
    starts += question[i] == 'S';
    goals += question[i] == 'G';
  }
  if (starts != 1 || goals != 1) return cat("has ", starts, " 'S' and ", goals, " 'G' instead of one each");
  return "";
}

ShortestPath shortest_path(std::string_view question) {
  ShortestPath path;
  const int side = maze_side(question.size());
  const int goal = static_cast<int>(question.find('G'));
  const Distances distances = distances_from(question, side, static_cast<int>(question.find('S')));
  path.length = distances.moves[goal];
  if (path.length < 0) return path;
  path.unique = distances.paths[goal] == 1;
  path.cells = walk_back(distances, side, goal);
  return path;
}

PathCheck check_maze_answer(std::string_view question, std::string_view answer) {
  PathCheck check;
  if (answer.size() != question.size()) return check;
  const int side = maze_side(question.size());
  int64_t path_cells = 0;
  for (size_t i = 0; i < answer.size(); ++i) {
    if (answer[i] != question[i] && !(answer[i] == 'o' && question[i] == ' ')) return check;
    path_cells += answer[i] == 'o';
  }
  // Walks from S along the path: each cell must have exactly one path neighbour that was not visited yet.
  const auto on_path = [&](int cell) { return answer[cell] == 'o' || answer[cell] == 'S' || answer[cell] == 'G'; };
  int cell = static_cast<int>(question.find('S')), previous = -1;
  int64_t moves = 0;
  while (question[cell] != 'G') {
    int next = -1, branches = 0;
    for_neighbours(cell, side, [&](int neighbour) {
      if (neighbour == previous || !on_path(neighbour)) return;
      next = neighbour;
      ++branches;
    });
    if (branches != 1 || moves > path_cells) return check;
    previous = cell;
    cell = next;
    ++moves;
  }
  if (moves != path_cells + 1) return check;  // there are 'o' cells off the path
  check.valid = true;
  check.length = moves;
  check.shortest = moves == shortest_path(question).length;
  return check;
}

Maze generate_maze(int side, int64_t min_path, CounterRng& rng) {
  require(side >= 3 && side <= 1024, ExitCode::usage, "a maze of size ", side, " cannot be made: give 3 to 1024");
  constexpr int kMazes = 200, kStarts = 20;
  for (int attempt = 0; attempt < kMazes; ++attempt) {
    std::string maze = carve(side, rng);
    std::vector<int> free_cells;
    for (size_t i = 0; i < maze.size(); ++i) {
      if (maze[i] == ' ') free_cells.push_back(static_cast<int>(i));
    }
    for (int draw = 0; draw < kStarts && free_cells.size() > 1; ++draw) {
      const int start = free_cells[rng.below(static_cast<uint32_t>(free_cells.size()))];
      const Distances distances = distances_from(maze, side, start);
      std::vector<int> goals;
      for (const int cell : free_cells) {
        if (cell != start && distances.moves[cell] > min_path && distances.paths[cell] == 1) goals.push_back(cell);
      }
      if (goals.empty()) continue;
      const int goal = goals[rng.below(static_cast<uint32_t>(goals.size()))];
      Maze result;
      maze[start] = 'S';
      maze[goal] = 'G';
      result.question = maze;
      result.path_length = distances.moves[goal];
      for (const int cell : walk_back(distances, side, goal)) {
        if (maze[cell] == ' ') maze[cell] = 'o';
      }
      result.answer = std::move(maze);
      return result;
    }
  }
  fail(ExitCode::usage, "no maze of size ", side, " with a shortest path over ", min_path, " moves was found in ",
       kMazes, " tries: make the size larger or the path shorter");
}

}  // namespace hrm::data
