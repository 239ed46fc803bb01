#include "hrm/data/arc.h"

#include <algorithm>

#include "hrm/base/error.h"
#include "hrm/base/text.h"
#include "hrm/data/dihedral.h"

namespace hrm::data {
namespace {

constexpr std::string_view kSeparator = "|||";
constexpr uint8_t kEnd = 1, kFirstColour = 2;

ArcGrid turned(int transform, const ArcGrid& grid) {
  const bool swaps = dihedral_swaps_axes(transform);
  return {swaps ? grid.cols : grid.rows, swaps ? grid.rows : grid.cols,
          dihedral(transform, grid.rows, grid.cols, grid.cells)};
}

ArcGrid recoloured(const std::array<uint8_t, kArcColours>& colours, ArcGrid grid) {
  for (uint8_t& cell : grid.cells) cell = colours[cell];
  return grid;
}

}  // namespace

ArcGrid ArcAugmentation::apply(const ArcGrid& grid) const {
  return turned(transform, recoloured(colours, grid));
}

ArcGrid ArcAugmentation::undo(const ArcGrid& grid) const {
  std::array<uint8_t, kArcColours> back{};
  for (uint8_t colour = 0; colour < kArcColours; ++colour) back[colours[colour]] = colour;
  return recoloured(back, turned(kDihedralInverse[static_cast<size_t>(transform)], grid));
}

std::string arc_name(const std::string& task, const ArcAugmentation& augmentation) {
  std::string name = cat(task, kSeparator, "t", augmentation.transform, kSeparator);
  for (const uint8_t colour : augmentation.colours) name += static_cast<char>('0' + colour);
  return name;
}

ArcName parse_arc_name(const std::string& name) {
  const size_t last = name.rfind(kSeparator);
  if (last == std::string::npos) return {.task = name, .augmentation = {}};
  const auto malformed = [&] {
    fail(ExitCode::data, "'", printable_start(name),
         "' is not the name of an ARC task's copy, such as 007bbfb7|||t3|||0497523618");
  };
  const size_t first = last == 0 ? std::string::npos : name.rfind(kSeparator, last - 1);
  if (first == std::string::npos || last - first != kSeparator.size() + 2) malformed();
  const std::string_view transform = std::string_view(name).substr(first + kSeparator.size(), 2),
                         digits = std::string_view(name).substr(last + kSeparator.size());
  if (transform[0] != 't' || transform[1] < '0' || transform[1] > '7' || digits.size() != kArcColours) malformed();
  ArcName result{.task = name.substr(0, name.find(kSeparator)), .augmentation = {}, .copy = true};
  result.augmentation.transform = transform[1] - '0';
  std::array<bool, kArcColours> seen{};
  for (size_t i = 0; i < digits.size(); ++i) {
    if (digits[i] < '0' || digits[i] > '9' || seen[static_cast<size_t>(digits[i] - '0')]) malformed();
    seen[static_cast<size_t>(digits[i] - '0')] = true;
    result.augmentation.colours[i] = static_cast<uint8_t>(digits[i] - '0');
  }
  return result;
}

void arc_tokens(const ArcGrid& grid, int row, int col, uint8_t* tokens) {
  std::fill_n(tokens, kArcCells, uint8_t{0});
  for (int r = 0; r < grid.rows; ++r) {
    for (int c = 0; c < grid.cols; ++c) {
      tokens[(row + r) * kArcSide + col + c] =
          static_cast<uint8_t>(grid.cells[static_cast<size_t>(r * grid.cols + c)] + kFirstColour);
    }
  }
  const int end_row = row + grid.rows, end_col = col + grid.cols;
  if (end_row < kArcSide) std::fill_n(tokens + end_row * kArcSide + col, grid.cols, kEnd);
  if (end_col >= kArcSide) return;
  for (int r = row; r < end_row; ++r) tokens[r * kArcSide + end_col] = kEnd;
}

ArcGrid crop_arc(const int32_t* tokens) {
  int best_rows = 0, best_cols = 0, cols = kArcSide;
  for (int r = 0; r < kArcSide; ++r) {
    int here = 0;
    while (here < cols && tokens[r * kArcSide + here] >= kFirstColour &&
           tokens[r * kArcSide + here] < kFirstColour + kArcColours) {
      ++here;
    }
    cols = here;
    if ((r + 1) * cols > best_rows * best_cols) {
      best_rows = r + 1;
      best_cols = cols;
    }
  }
  ArcGrid grid{best_rows, best_cols, {}};
  for (int r = 0; r < best_rows; ++r) {
    for (int c = 0; c < best_cols; ++c) {
      grid.cells.push_back(static_cast<uint8_t>(tokens[r * kArcSide + c] - kFirstColour));
    }
  }
  return grid;
}

}  // namespace hrm::data
