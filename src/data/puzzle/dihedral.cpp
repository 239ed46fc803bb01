#include "hrm/data/dihedral.h"

#include <algorithm>

#include "hrm/base/error.h"
#include "hrm/base/philox.h"

namespace hrm::data {

std::vector<uint32_t> dihedral_source(int transform, int rows, int cols) {
  require(transform >= 0 && transform < 8, ExitCode::unexpected, "dihedral transform ", transform, " is not 0..7");
  const bool swaps = dihedral_swaps_axes(transform);
  const int out_rows = swaps ? cols : rows, out_cols = swaps ? rows : cols;
  std::vector<uint32_t> source;
  source.reserve(static_cast<size_t>(rows) * cols);
  for (int i = 0; i < out_rows; ++i) {
    for (int j = 0; j < out_cols; ++j) {
      source.push_back(static_cast<uint32_t>(ops::dihedral_source_cell(transform, rows, cols, i, j)));
    }
  }
  return source;
}

DihedralAugmenter::DihedralAugmenter(int side) : scratch_(static_cast<size_t>(side) * side) {
  for (int transform = 0; transform < 8; ++transform) sources_[transform] = dihedral_source(transform, side, side);
}

void DihedralAugmenter::operator()(uint64_t seed, uint64_t sample, int32_t* inputs, int32_t* labels) {
  const std::vector<uint32_t>& source = sources_[CounterRng(seed, Stream::augment, sample).below(8)];
  for (int32_t* tokens : {inputs, labels}) {
    std::copy_n(tokens, scratch_.size(), scratch_.begin());
    for (size_t i = 0; i < source.size(); ++i) tokens[i] = scratch_[source[i]];
  }
}

}  // namespace hrm::data
