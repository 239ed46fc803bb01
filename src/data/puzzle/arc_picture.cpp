// Pictures of ARC tasks. All coordinates are whole pixels, so the text of a picture is the same on every machine.
#include "hrm/data/arc_picture.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/base/text.h"

namespace hrm::data {
namespace {

namespace fs = std::filesystem;

// The colours of the ARC Prize's pages, 0 to 9.
constexpr std::array<std::string_view, kArcColours> kColours{"#000000", "#0074d9", "#ff4136", "#2ecc40", "#ffdc00",
                                                             "#aaaaaa", "#f012be", "#ff851b", "#7fdbff", "#870c25"};
constexpr std::string_view kInk = "#222222", kSoft = "#666666", kRight = "#1a7f37", kWrong = "#cf222e";
constexpr std::string_view kNoGrid = "#ffffff";

constexpr int kMargin = 16, kGap = 24, kTitleHeight = 34, kHeadingHeight = 40, kArrowHeight = 28;
constexpr int kFont = 12, kLine = 16, kLetter = 7, kTitleLetter = 10;  // letters as wide as the widest usual fonts
constexpr int kWidestGrid = 160, kSmallestCell = 6, kLargestCell = 24;
constexpr int kUnknownCells = 3;  // sides of the box of a grid that is not there
constexpr size_t kAttempts = 2;   // as in a submission
constexpr size_t kLongestTitle = 60;

int text_width(std::string_view text) {
  return kLetter * static_cast<int>(text.size());
}

// A grid with the lines below it.
struct Figure {
  ArcGrid grid;
  bool known = true;
  std::vector<std::string> captions = {};
  std::string_view colour = kSoft;  // of the first caption, and of the frame if there is one
  bool framed = false;
  const ArcGrid* truth = nullptr;  // cells that differ from it are marked

  int rows() const { return known && grid.rows > 0 ? grid.rows : kUnknownCells; }
  int cols() const { return known && grid.cols > 0 ? grid.cols : kUnknownCells; }
};

// An input above outputs: one, or the truth and the attempts.
struct Column {
  std::string heading, sizes;
  Figure input;
  std::vector<Figure> outputs;
};

int width_of(const Figure& figure, int cell) {
  int width = figure.cols() * cell;
  for (const std::string& caption : figure.captions) width = std::max(width, text_width(caption));
  return width;
}

// The first output stands below the input.
int first_width(const Column& column, int cell) {
  const int below = std::max(width_of(column.input, cell), width_of(column.outputs[0], cell));
  return std::max({below, text_width(column.heading), text_width(column.sizes)});
}

int width_of(const Column& column, int cell) {
  int width = first_width(column, cell);
  for (size_t i = 1; i < column.outputs.size(); ++i) width += kGap + width_of(column.outputs[i], cell);
  return width;
}

std::string size_text(const ArcGrid& grid, bool known) {
  return known ? cat(grid.rows, "x", grid.cols) : std::string("?");
}

Column column_of(const std::string& heading, const ArcPair& pair, bool known) {
  return {.heading = heading,
          .sizes = cat(size_text(pair.input, true), " to ", size_text(pair.output, known)),
          .input = {.grid = pair.input},
          .outputs = {{.grid = pair.output, .known = known}}};
}

void add_attempts(Column& column, const ArcPair& pair, bool known, const std::vector<ArcVotes::Candidate>& ranking) {
  column.outputs[0].captions = {known ? "truth" : "truth not known"};
  int64_t votes = 0;
  for (const ArcVotes::Candidate& candidate : ranking) votes += candidate.votes;
  for (size_t i = 0; i < kAttempts; ++i) {
    Figure figure{.grid = {}, .known = i < ranking.size()};
    const std::string attempt = cat("attempt ", i + 1);
    if (!figure.known) {
      figure.captions = {attempt + ": none"};
    } else {
      const bool right = ranking[i].grid == pair.output;
      figure.grid = ranking[i].grid;
      figure.captions = {known ? cat(attempt, right ? ": right" : ": wrong") : attempt,
                         cat(ranking[i].votes, " of ", votes, " votes")};
      if (known) {
        figure.colour = right ? kRight : kWrong;
        figure.framed = true;
        figure.truth = &pair.output;
      }
    }
    column.outputs.push_back(std::move(figure));
  }
}

class Drawing {
 public:
  explicit Drawing(int cell) : cell_(cell) {}

  void text(int x, int y, std::string_view what, std::string_view colour, std::string_view more = "") {
    body_ +=
        cat("<text x=\"", x, "\" y=\"", y, "\" fill=\"", colour, "\"", more, ">", escaped_markup(what), "</text>\n");
  }
  void line(int x, int top, int bottom) {
    body_ += cat("<path d=\"M", x, " ", top, "V", bottom, "\" stroke=\"#bbbbbb\"/>\n");
  }
  void arrow(int x, int y) {
    body_ += cat("<path d=\"M", x, " ", y, "v12m-5 -5l5 5l5 -5\" fill=\"none\" stroke=\"", kSoft,
                 "\" stroke-width=\"2\"/>\n");
  }
  // The grid's upper edge is at y, its middle at x.
  void figure(int x, int y, const Figure& figure) {
    const int left = x - figure.cols() * cell_ / 2;
    if (!figure.known || figure.grid.cells.empty()) {
      no_grid(left, y, figure);
    } else {
      grid(left, y, figure);
    }
    int at = y + figure.rows() * cell_ + kLine;
    for (size_t i = 0; i < figure.captions.size(); ++i, at += kLine) {
      text(x, at, figure.captions[i], i == 0 ? figure.colour : kSoft,
           i == 0 && figure.framed ? " text-anchor=\"middle\" font-weight=\"bold\"" : " text-anchor=\"middle\"");
    }
  }
  const std::string& body() const { return body_; }

 private:
  void no_grid(int left, int y, const Figure& figure) {
    const int side = figure.rows() * cell_;
    body_ += cat("<rect x=\"", left, "\" y=\"", y, "\" width=\"", side, "\" height=\"", side, "\" fill=\"", kNoGrid,
                 "\" stroke=\"", figure.framed ? figure.colour : kSoft, "\" stroke-dasharray=\"4 3\"/>\n");
    // An answer may be a grid without cells: its box is empty.
    if (!figure.known) text(left + side / 2, y + side / 2 + 5, "?", kSoft, " text-anchor=\"middle\"");
  }

  void grid(int left, int y, const Figure& figure) {
    const ArcGrid& grid = figure.grid;
    std::array<int, kArcColours> count{};
    for (const uint8_t cell : grid.cells) ++count[cell];
    const size_t most = static_cast<size_t>(std::max_element(count.begin(), count.end()) - count.begin());
    body_ += cat("<g transform=\"translate(", left, " ", y, ")\">\n<g transform=\"scale(", cell_,
                 ")\">\n<rect width=\"", grid.cols, "\" height=\"", grid.rows, "\" fill=\"", kColours[most], "\"/>\n");
    for (size_t colour = 0; colour < kArcColours; ++colour) {
      if (count[colour] == 0 || colour == most) continue;
      body_ += cat("<path fill=\"", kColours[colour], "\" d=\"", runs(grid, static_cast<uint8_t>(colour)), "\"/>\n");
    }
    body_ += "</g>\n";
    std::string lines;
    for (int r = 0; r <= grid.rows; ++r) lines += cat("M0 ", r * cell_, "h", grid.cols * cell_);
    for (int c = 0; c <= grid.cols; ++c) lines += cat("M", c * cell_, " 0v", grid.rows * cell_);
    body_ += cat("<path d=\"", lines, "\" stroke=\"#777777\"", cell_ < 10 ? " stroke-opacity=\".5\"" : "", "/>\n");
    if (figure.truth != nullptr) marks(grid, *figure.truth);
    if (figure.framed) {
      body_ += cat("<rect x=\"-3\" y=\"-3\" width=\"", grid.cols * cell_ + 6, "\" height=\"", grid.rows * cell_ + 6,
                   "\" fill=\"none\" stroke=\"", figure.colour, "\" stroke-width=\"3\"/>\n");
    }
    body_ += "</g>\n";
  }

  // Rectangles of neighbours in a row that have one colour.
  static std::string runs(const ArcGrid& grid, uint8_t colour) {
    std::string path;
    for (int r = 0; r < grid.rows; ++r) {
      const uint8_t* row = grid.cells.data() + r * grid.cols;
      for (int c = 0; c < grid.cols;) {
        const auto length = static_cast<int>(
            std::find_if(row + c, row + grid.cols, [&](uint8_t cell) { return cell != colour; }) - (row + c));
        if (length > 0) path += cat("M", c, " ", r, "h", length, "v1h-", length, "z");
        c += std::max(length, 1);
      }
    }
    return path;
  }

  // Small white squares on the cells that differ, where the sizes are equal.
  void marks(const ArcGrid& grid, const ArcGrid& truth) {
    if (grid == truth || grid.rows != truth.rows || grid.cols != truth.cols) return;
    const int side = std::max(2, cell_ / 3), inset = (cell_ - side) / 2;
    std::string path;
    for (size_t i = 0; i < grid.cells.size(); ++i) {
      if (grid.cells[i] == truth.cells[i]) continue;
      const auto row = static_cast<int>(i) / grid.cols, col = static_cast<int>(i) % grid.cols;
      path += cat("M", col * cell_ + inset, " ", row * cell_ + inset, "h", side, "v", side, "h-", side, "z");
    }
    body_ += cat("<path d=\"", path, "\" fill=\"#ffffff\" stroke=\"#000000\"/>\n");
  }

  int cell_;
  std::string body_;
};

int longest_side(const std::vector<Column>& columns) {
  int longest = 1;
  const auto add = [&](const Figure& figure) { longest = std::max({longest, figure.grid.rows, figure.grid.cols}); };
  for (const Column& column : columns) {
    add(column.input);
    for (const Figure& output : column.outputs) add(output);
  }
  return longest;
}

}  // namespace

bool arc_answers_known(const std::vector<ArcTask>& tasks) {
  const ArcGrid none{1, 1, {0}};
  return std::any_of(tasks.begin(), tasks.end(), [&](const ArcTask& task) {
    return std::any_of(task.test.begin(), task.test.end(), [&](const ArcPair& pair) { return pair.output != none; });
  });
}

std::string arc_picture(const ArcTask& task, const ArcPictureOptions& options) {
  std::vector<Column> columns;
  for (const ArcPair& pair : task.train) {
    columns.push_back(column_of(cat("demonstration ", columns.size() + 1), pair, true));
  }
  for (size_t i = 0; i < task.test.size(); ++i) {
    const ArcPair& pair = task.test[i];
    columns.push_back(column_of(cat("test ", i + 1), pair, options.known));
    if (options.votes == nullptr) continue;
    add_attempts(columns.back(), pair, options.known, options.votes->ranking(task.name, pair.input));
  }
  const int cell = std::clamp(kWidestGrid / longest_side(columns), kSmallestCell, kLargestCell);
  int input_rows = 1, output_height = 0, width = kMargin;
  for (const Column& column : columns) {
    input_rows = std::max(input_rows, column.input.rows());
    for (const Figure& output : column.outputs) {
      const int captions = static_cast<int>(output.captions.size()) * kLine;
      output_height = std::max(output_height, output.rows() * cell + captions);
    }
    width += width_of(column, cell) + kGap;
  }
  width += columns.size() > task.train.size() && !task.train.empty() ? kGap : 0;
  const std::string title = printable_start(task.name, kLongestTitle);
  width = std::max(width - kGap + kMargin, 2 * kMargin + kTitleLetter * static_cast<int>(title.size()));
  const int input_top = kMargin + kTitleHeight + kHeadingHeight, input_bottom = input_top + input_rows * cell,
            output_top = input_bottom + kArrowHeight, height = output_top + output_height + kMargin;

  Drawing drawing(cell);
  drawing.text(kMargin, kMargin + 16, title, kInk, " font-size=\"16\" font-weight=\"bold\"");
  int left = kMargin;
  for (size_t i = 0; i < columns.size(); ++i) {
    const Column& column = columns[i];
    if (i == task.train.size() && i > 0) {
      drawing.line(left, kMargin + kTitleHeight, height - kMargin);
      left += kGap;
    }
    const int first = first_width(column, cell), middle = left + first / 2;
    drawing.text(middle, kMargin + kTitleHeight + kFont, column.heading, kInk, " text-anchor=\"middle\"");
    drawing.text(middle, kMargin + kTitleHeight + kFont + kLine, column.sizes, kSoft, " text-anchor=\"middle\"");
    drawing.figure(middle, input_bottom - column.input.rows() * cell, column.input);
    drawing.arrow(middle, input_bottom + 8);
    drawing.figure(middle, output_top, column.outputs[0]);
    int output_left = left + first + kGap;
    for (size_t k = 1; k < column.outputs.size(); ++k) {
      const int output_width = width_of(column.outputs[k], cell);
      drawing.figure(output_left + output_width / 2, output_top, column.outputs[k]);
      output_left += output_width + kGap;
    }
    left += width_of(column, cell) + kGap;
  }
  return cat("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"", width, "\" height=\"", height, "\" viewBox=\"0 0 ",
             width, " ", height, "\" font-family=\"system-ui, DejaVu Sans, sans-serif\" font-size=\"", kFont,
             "\" shape-rendering=\"crispEdges\" role=\"img\">\n<title>ARC task ", escaped_markup(title),
             "</title>\n<rect width=\"", width, "\" height=\"", height, "\" fill=\"#f6f6f6\"/>\n", drawing.body(),
             "</svg>\n");
}

std::string arc_picture_file(const std::string& task) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  if (task.empty()) return "%.svg";  // no other name is written so
  std::string file;
  for (const char c : task) {
    const auto byte = static_cast<unsigned char>(c);
    if (is_plain_file_name(std::string_view(&c, 1)) || ((c == '.' || c == '-') && !file.empty())) {
      file += c;
    } else {
      file += '%';
      file += kDigits[byte >> 4];
      file += kDigits[byte & 15];
    }
  }
  return file + ".svg";
}

void require_new_arc_pictures(const fs::path& folder, const std::vector<ArcTask>& tasks) {
  make_directories(folder);
  require(access(folder.c_str(), W_OK | X_OK) == 0, ExitCode::environment, "'", printable(folder.string()),
          "': no permission to write pictures there");
  for (const ArcTask& task : tasks) {
    std::error_code ignored;
    const std::string file = arc_picture_file(task.name);
    require(fs::symlink_status(folder / file, ignored).type() == fs::file_type::not_found, ExitCode::usage, "'",
            printable(folder.string()), "' holds ", printable_start(file),
            " already; give the pictures a new folder, or remove that one");
  }
}

void write_arc_pictures(const fs::path& folder, const std::vector<ArcTask>& tasks, const ArcPictureOptions& options) {
  for (const ArcTask& task : tasks) write_text_atomic(folder / arc_picture_file(task.name), arc_picture(task, options));
}

}  // namespace hrm::data
