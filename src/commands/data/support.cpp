#include "commands/data/support.h"

#include <algorithm>
#include <charconv>

#include "hrm/base/error.h"
#include "hrm/data/sudoku.h"
#include "hrm/formats/dtype.h"

namespace hrm::data {

std::pair<int64_t, int64_t> parse_pair(const std::string& text, char separator, const char* option, const char* form) {
  int64_t first = -1, second = -1;
  const char* end = text.data() + text.size();
  const auto one = std::from_chars(text.data(), end, first);
  bool good = one.ec == std::errc() && one.ptr != end && *one.ptr == separator;
  if (good) {
    const auto two = std::from_chars(one.ptr + 1, end, second);
    good = two.ec == std::errc() && two.ptr == end && first >= 0 && second >= 0;
  }
  require(good, ExitCode::usage, option, " \"", text, "\" is not of the form ", form);
  return {first, second};
}

std::pair<int64_t, int64_t> parse_box(const std::string& text) {
  if (text.empty()) return {0, 0};
  const auto box = parse_pair(text, 'x', "--box", "RxC, e.g. 2x3");
  // Bounded before they are multiplied.
  require(box.first >= 1 && box.second >= 1 && box.first <= kMaxSudokuSize && box.second <= kMaxSudokuSize,
          ExitCode::usage, "--box ", text, ": a Sudoku has at most ", kMaxSudokuSize, " rows");
  return box;
}

void check_sources(const char* command, bool generate, const std::string& train_csv, const std::string& test_csv,
                   const std::string& out) {
  const bool csv = !train_csv.empty() || !test_csv.empty();
  require(generate != csv, ExitCode::usage, "data ", command,
          generate ? ": give either --generate or CSV files, not both"
                   : ": give --generate, or --train-csv and --test-csv");
  require(!out.empty(), ExitCode::usage, "data ", command, ": give the folder to write with --out");
}

std::string vectors_text(const VectorDataset& dataset) {
  const float* inputs = dataset.inputs().data_ptr<float>();
  const auto [least, most] = std::minmax_element(inputs, inputs + dataset.inputs().numel());
  std::vector<int64_t> counts(static_cast<size_t>(dataset.classes()), 0);
  for (int64_t i = 0; i < dataset.rows(); ++i) ++counts[static_cast<size_t>(dataset.labels().data_ptr<int64_t>()[i])];
  const auto [fewest, largest] = std::minmax_element(counts.begin(), counts.end());
  return cat(dataset.rows(), " rows of ", shape_text(dataset.row_shape()), " features, ", *least, " to ", *most, "; ",
             dataset.classes(), " classes of ", *fewest, " to ", *largest, " rows");
}

}  // namespace hrm::data
