#include <limits>

#include "hrm/ops/linear.h"
#include "ops/adapters/lora_cases.h"
#include "ops/gpu_testing.h"

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

// Both kernels and what they leave to a product for each slice: ranks on both sides of each number of steps, and such
// that B's rows are not read four at a time; partial tiles of rows and columns; more spans than one launch has.
TEST(LoraMergeGpu, AgainstFloat64) {
  HRM_NEEDS_GPU();
  const WithoutTf32 exact;
  const std::vector<MergedLayer> sizes = {{128, {128, 1, 300}, 3},
                                          {1032, {257}},
                                          {8, {5, 64}},
                                          {40, {16}, 128},
                                          {97, {33, 7}, 1},
                                          {3, {2}},
                                          {512, {}, 130},
                                          {0, {3}},
                                          {264, {129, 15, 16}},
                                          {36, {9}},
                                          {1, {1, 1, 1, 1, 1, 1, 1, 1, 1}, 1}};
  for (const auto dtype : {at::kBFloat16, at::kHalf, at::kFloat, at::kDouble}) {
    for (const int64_t rank : {1, 4, 6, 8, 16, 17, 20, 32, 33, 48, 49, 64, 72}) {
      expect_good_lora_merge(lora_layers_of(sizes, rank, dtype, at::kCUDA), cat(dtype, ", rank ", rank));
    }
  }
  expect_good_lora_merge(
      lora_layers_of(std::vector<MergedLayer>(60, {64, {32, 16, 16}, 8}), 16, at::kBFloat16, at::kCUDA), "many layers");
}

TEST(LoraMergeGpu, LargeShapes) {
  HRM_NEEDS_GPU();
  const std::vector<MergedLayer> sizes = {
      {1024, {2048, 1024, 1024}}, {2048, {1024}}, {1024, {3072, 3072}}, {3072, {1024}}};
  for (const int64_t rank : {8, 16, 64}) {
    expect_good_lora_merge(lora_layers_of(sizes, rank, at::kBFloat16, at::kCUDA), cat("rank ", rank));
  }
}

TEST(LoraMergeGpu, Misaligned) {
  HRM_NEEDS_GPU();
  const WithoutTf32 exact;
  const auto moved = [](const at::Tensor& t) {
    return at::empty({t.numel() + 1}, t.options()).narrow(0, 1, t.numel()).view(t.sizes()).copy_(t);
  };
  for (const auto dtype : {at::kBFloat16, at::kFloat}) {
    for (int which = 0; which < 5; ++which) {
      std::vector<LoraLayer> layers = lora_layers_of({{64, {40, 16}, 8}, {64, {16}}}, 16, dtype, at::kCUDA);
      LoraLayer& layer = layers[0];
      if (which == 4) {
        layer.A = layer.A.t().contiguous().t();
      } else {
        at::Tensor& tensor = which == 0 ? layer.weight : which == 1 ? layer.merged : which == 2 ? layer.A : layer.B;
        tensor = moved(tensor);
      }
      expect_good_lora_merge(layers, cat(dtype, ", tensor ", which));
    }
  }
}

TEST(LoraMergeGpu, ReferenceBackendAgrees) {
  HRM_NEEDS_GPU();
  const std::vector<LoraLayer> layers = lora_layers_of({{128, {100, 60}, 4}}, 16, at::kBFloat16, at::kCUDA);
  const at::Tensor ours = merged_of(layers)[0].clone();
  const WithReference reference;
  expect_near(ours, merged_of(layers)[0]);
  expect_good_lora_merge(layers, "reference");
}

// Rows between slices stay as they are, whatever they hold; nothing behind the tensors is written.
TEST(LoraMergeGpu, KeepsOtherRows) {
  HRM_NEEDS_GPU();
  for (const int64_t width : {48, 49}) {
    std::vector<LoraLayer> layers = lora_layers_of({{width, {37, 20}, 5}}, 8, at::kBFloat16, at::kCUDA);
    LoraLayer& layer = layers[0];
    layer.weight[1].fill_(std::numeric_limits<float>::infinity());
    layer.weight[2].fill_(-0.0);
    const at::Tensor room = at::full({layer.weight.numel() + 512}, 7, layer.weight.options());
    layer.merged = room.narrow(0, 0, layer.weight.numel()).view(layer.weight.sizes());
    lora_merge_(layers, kMergeScale);
    EXPECT_TRUE(at::equal(room.narrow(0, layer.weight.numel(), 512), at::full({512}, 7, room.options())));
    for (const int64_t from : {0, 42, 67}) {
      expect_same_bits(layer.merged.narrow(0, from, 5).view(at::kShort),
                       layer.weight.narrow(0, from, 5).view(at::kShort), cat("from ", from));
    }
  }
}

TEST(LoraMergeGpu, SameEachTime) {
  HRM_NEEDS_GPU();
  const std::vector<LoraLayer> layers =
      lora_layers_of({{1024, {2048, 1024, 1024}}, {97, {33}, 2}}, 16, at::kBFloat16, at::kCUDA);
  const auto run = [&] {
    std::vector<at::Tensor> results;
    for (const at::Tensor& merged : merged_of(layers)) results.push_back(merged.clone());
    return results;
  };
  expect_same_each_time(run, 20, "layers");
}

TEST(LoraMergeGpu, Captured) {
  HRM_NEEDS_GPU();
  for (const auto dtype : {at::kBFloat16, at::kFloat}) {
    const std::vector<LoraLayer> layers = lora_layers_of({{512, {256, 128}, 16}, {64, {64}}}, 16, dtype, at::kCUDA);
    std::vector<at::Tensor> results;
    Captured captured([&] { results = merged_of(layers); });
    for (uint64_t i = 0; i < 3; ++i) {
      for (const LoraLayer& layer : layers) {
        layer.A.copy_(normal(layer.A.sizes(), 10 + i, dtype, at::kCUDA));
        layer.B.copy_(normal(layer.B.sizes(), 20 + i, dtype, at::kCUDA));
        layer.merged.zero_();
      }
      captured.replay();
      std::vector<at::Tensor> got;
      for (const at::Tensor& result : results) got.push_back(result.clone());
      const std::vector<at::Tensor> want = merged_of(layers);
      for (size_t k = 0; k < want.size(); ++k) expect_same_bits(got[k], want[k], cat("replay ", i, ", layer ", k));
    }
  }
}

TEST(LoraMergeGpu, BadInput) {
  HRM_NEEDS_GPU();
  expect_lora_merge_to_name_bad_input(at::kCUDA);
}

}  // namespace
}  // namespace hrm::ops
