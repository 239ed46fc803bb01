#include "ops/lora_cases.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

TEST(LoraProducts, AgainstFloat64) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
    for (const int64_t rows : {1, 5, 0}) {
      expect_good_lora_products(lora_products(rows, 3, {4, 1, 7}, 2, dtype, at::kCPU), cat(dtype, " ", rows));
      expect_good_lora_products(lora_products(rows, 8, {16}, 0, dtype, at::kCPU, /*trains=*/false), cat(rows, " rows"));
    }
  }
}

TEST(LoraProducts, BadInput) {
  expect_lora_to_name_bad_input(at::kCPU);
}

}  // namespace
}  // namespace hrm::ops
