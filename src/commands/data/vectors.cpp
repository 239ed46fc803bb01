#include "hrm/data/vectors.h"

#include <numeric>
#include <optional>
#include <ostream>

#include "commands/data/support.h"
#include "hrm/base/error.h"
#include "hrm/base/philox.h"
#include "hrm/commands/data.h"
#include "hrm/data/vector_csv.h"

namespace hrm::data {
namespace {

// The order of the rows before they are divided.
std::vector<int64_t> row_order(const VectorsCommand& command, int64_t rows) {
  std::vector<int64_t> order(static_cast<size_t>(rows));
  std::iota(order.begin(), order.end(), int64_t{0});
  if (command.shuffle) CounterRng(static_cast<uint64_t>(command.seed), Stream::subset, 0).shuffle(order);
  return order;
}

}  // namespace

void run_data_vectors(const VectorsCommand& command, std::ostream& out) {
  require(!command.out.empty(), ExitCode::usage, "data vectors: give the folder to write with --out");
  require(command.test_csv.empty() || command.train_rows == 0, ExitCode::usage,
          "data vectors: give either --train-rows or --test, not both");
  const VectorRows rows = read_vector_csv(command.csv, command.label_column);
  require(command.train_rows < rows.size(), ExitCode::usage, "--train-rows ", command.train_rows,
          " leaves no test rows of the ", rows.size(), " in ", command.csv);
  const std::vector<int64_t> order = row_order(command, rows.size());
  const int64_t train_rows = command.train_rows > 0 ? command.train_rows : rows.size();
  const std::span<const int64_t> all(order), first = all.first(static_cast<size_t>(train_rows));
  std::optional<VectorRows> test;
  if (!command.test_csv.empty()) {
    test = read_vector_csv(command.test_csv, command.label_column);
  } else if (train_rows < rows.size()) {
    test = rows.select(all.subspan(first.size()));
  }
  // Checked as a training checks them, before anything is written.
  const VectorRows train = rows.select(first);
  const VectorDataset checked = vectors_of_rows(train, command.csv);
  std::string summary = cat(command.out, "\ntrain: ", vectors_text(checked), "\n");
  if (test) {
    const VectorDataset held_out =
        vectors_of_rows(*test, command.test_csv.empty() ? command.csv + " (test rows)" : command.test_csv);
    check_same_vectors(checked, held_out);
    summary += cat("test: ", vectors_text(held_out), "\n");
    write_vectors(command.out, "test", *test);
  }
  write_vectors(command.out, "train", train);
  out << summary;
}

}  // namespace hrm::data
