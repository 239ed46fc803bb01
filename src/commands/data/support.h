#pragma once
// What the `hrm_train data` commands share.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "hrm/data/dataset.h"
#include "hrm/data/vectors.h"

namespace hrm::data {

// "A<separator>B" as two non-negative numbers. Throws Error(usage) naming the option and the form it wants.
std::pair<int64_t, int64_t> parse_pair(const std::string& text, char separator, const char* option, const char* form);

// "RxC", or 0 and 0 for an empty text.
std::pair<int64_t, int64_t> parse_box(const std::string& text);

// --generate or CSV files, not both and not neither; --out given. Throws Error(usage).
void check_sources(const char* command, bool generate, const std::string& train_csv, const std::string& test_csv,
                   const std::string& out);

// "1347 rows of [64] features, 0 to 16; 10 classes of 129 to 141 rows"
std::string vectors_text(const VectorDataset& dataset);

// Shares of rows that are right as a whole and of cells that are right.
struct Score {
  double exact = 0;
  double cells = 0;
};

// `row(i)` gives prediction and truth of row i, of the same length.
template <class F>
Score score_predictor(int64_t rows, F&& row) {
  int64_t exact = 0, right = 0, total = 0;
  for (int64_t i = 0; i < rows; ++i) {
    const auto [prediction, truth] = row(i);
    int64_t here = 0;
    for (size_t j = 0; j < truth.size(); ++j) here += prediction[j] == truth[j];
    exact += here == static_cast<int64_t>(truth.size());
    right += here;
    total += static_cast<int64_t>(truth.size());
  }
  return {static_cast<double>(exact) / static_cast<double>(rows),
          static_cast<double>(right) / static_cast<double>(total)};
}

}  // namespace hrm::data
