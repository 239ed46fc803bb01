#include "ops/adapters/lora_cases.h"

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

TEST(LoraMerge, AgainstFloat64) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
    for (const int64_t rank : {1, 4, 7, 72}) {
      const std::vector<LoraLayer> layers =
          lora_layers_of({{24, {5, 1, 16}, 3}, {7, {20}}, {1, {1}, 1}, {16, {}, 4}, {0, {3}}}, rank, dtype, at::kCPU);
      expect_good_lora_merge(layers, cat(dtype, ", rank ", rank));
    }
  }
  lora_merge_({}, 1);
}

TEST(LoraMerge, BadInput) {
  expect_lora_merge_to_name_bad_input(at::kCPU);
}

}  // namespace
}  // namespace hrm::ops
