#include "hrm/ops/linear.h"
#include "ops/gpu_testing.h"
#include "ops/lora_cases.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

// What the kernels take and what they leave to a product for each slice; full and partial tiles of rows and columns.
TEST(LoraProductsGpu, AgainstFloat64) {
  HRM_NEEDS_GPU();
  const WithoutTf32 exact;
  const std::vector<std::vector<int64_t>> layers = {{32}, {256, 128, 128}, {320, 96}, {1056}, {40, 24}};
  for (const auto dtype : {at::kBFloat16, at::kHalf, at::kFloat}) {
    for (const int64_t rank : {1, 4, 8, 16, 24, 32, 48, 64, 72}) {
      for (const int64_t rows : {0, 1, 17, 64, 200}) {
        for (const auto& columns : layers) {
          for (const int64_t gap : {0, 32}) {
            const LoraProducts in = lora_products(rows, rank, columns, gap, dtype, at::kCUDA, rows != 17);
            expect_good_lora_products(in, cat(dtype, ", rank ", rank, ", ", rows, " rows, ", columns.size(),
                                              " slices from ", columns[0], ", gap ", gap));
          }
        }
      }
    }
  }
}

TEST(LoraProductsGpu, LargeShapes) {
  HRM_NEEDS_GPU();
  for (const auto& [rows, columns] : {std::pair<int64_t, std::vector<int64_t>>{2048, {2048, 1024, 1024}},
                                      {2048, {3072, 3072}},
                                      {2048, {1024}},
                                      {5000, {4096}}}) {
    expect_good_lora_products(lora_products(rows, 16, columns, 0, at::kBFloat16, at::kCUDA),
                              cat(rows, " rows, ", columns[0]));
  }
}

TEST(LoraProductsGpu, SameEachTime) {
  HRM_NEEDS_GPU();
  const LoraProducts in = lora_products(2048, 16, {2048, 1024, 1024}, 0, at::kBFloat16, at::kCUDA);
  expect_same_each_time([&] { return in.run(); }, 20, "qkv");
}

// Columns between the slices, and what lies behind the tensors, stay.
TEST(LoraProductsGpu, WritesNothingElse) {
  HRM_NEEDS_GPU();
  const LoraProducts in = lora_products(37, 8, {96, 32}, 32, at::kBFloat16, at::kCUDA);
  const at::Tensor room = at::full({in.y.numel() + 512}, 7, in.y.options()), y = room.narrow(0, 0, in.y.numel());
  y.copy_(in.y.view({-1}));
  lora_add_(y.view(in.y.sizes()), in.u, in.B, in.slices);
  EXPECT_TRUE(at::equal(room.narrow(0, in.y.numel(), 512), at::full({512}, 7, in.y.options())));
  for (const int64_t from : {0, 128}) {
    expect_same_bits(y.view(in.y.sizes()).narrow(1, from, 32), in.y.narrow(1, from, 32), cat("from ", from));
  }
}

// The same kernel behind linear_grad_x_add_, where there are few summands.
TEST(LoraProductsGpu, GradientOfX) {
  HRM_NEEDS_GPU();
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    for (const int64_t rank : {8, 16, 48, 64, 80}) {
      for (const auto& [rows, width] : {std::pair<int64_t, int64_t>{1, 32}, {33, 1056}, {2048, 1024}, {9, 40}}) {
        const at::Tensor x = normal({rows, width}, 1, dtype, at::kCUDA),
                         grad = normal({rows, rank}, 2, dtype, at::kCUDA);
        const at::Tensor A = normal({rank, width}, 3, dtype, at::kCUDA), sum = x.clone();
        linear_grad_x_add_(sum, grad, A);
        const at::Tensor exact = x.to(at::kDouble) + at::mm(grad.to(at::kDouble), A.to(at::kDouble));
        expect_as_good(sum, at::addmm(x, grad, A), exact, cat(dtype, ", rank ", rank, ", ", rows, " x ", width), 64);
      }
    }
  }
}

TEST(LoraProductsGpu, Captured) {
  HRM_NEEDS_GPU();
  const LoraProducts in = lora_products(300, 16, {512, 256}, 0, at::kBFloat16, at::kCUDA);
  std::vector<at::Tensor> results;
  Captured captured([&] { results = in.run(); });
  for (uint64_t i = 0; i < 3; ++i) {
    in.u.copy_(normal(in.u.sizes(), 10 + i, at::kBFloat16, at::kCUDA));
    in.grad_y.copy_(normal(in.grad_y.sizes(), 20 + i, at::kBFloat16, at::kCUDA));
    captured.replay();
    const std::vector<at::Tensor> want = in.run();
    for (size_t k = 0; k < want.size(); ++k) expect_same_bits(results[k], want[k], cat("replay ", i, ", result ", k));
  }
}

TEST(LoraProductsGpu, BadInput) {
  HRM_NEEDS_GPU();
  expect_lora_to_name_bad_input(at::kCUDA);
}

}  // namespace
}  // namespace hrm::ops
