#include "ops/dropout/dropout_cases.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

TEST(Dropout, IsTheFormulaWithTheDraws) {
  expect_good_dropout(at::kCPU);
}

TEST(Dropout, NamesWhatDoesNotFit) {
  const at::Tensor x = at::ones({2, 3}), step = at::zeros({}, at::kLong);
  expect_message(error_of([&] { dropout(x, step, 1, 1); }), {"hrm::dropout", "below 1", "got Float and 1"});
  expect_message(error_of([&] { dropout(x, step, -0.1, 1); }), {"hrm::dropout", "-0.1"});
  expect_message(error_of([&] { dropout(x.to(at::kInt), step, 0.1, 1); }), {"hrm::dropout", "Int"});
  expect_message(error_of([&] { dropout(x, at::zeros({1}, at::kLong), 0.1, 1); }), {"hrm::dropout", "step", "[1]"});
  expect_message(error_of([&] {
                   dropout_add_(at::ones({3, 2}), x, step, 0.1, 1);
                 }),
                 {"hrm::dropout_add_", "[2, 3]", "[3, 2]"});
  expect_message(error_of([&] {
                   dropout_add_(at::ones({3, 2}).t(), x, step, 0.1, 1);
                 }),
                 {"hrm::dropout_add_", "contiguous"});
}

}  // namespace
}  // namespace hrm::ops
