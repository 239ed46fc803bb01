#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "hrm/ops/linear.h"
#include "hrm/ops/rms_norm.h"
#include "hrm/ops/swiglu.h"
#include "ops/cuda/sm90/tensor_map.h"
#include "ops/gpu_testing.h"
#include "ops/linear/linear_epilogues_cases.h"
#include "ops/with_tiles.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

// The size of HRM's recipe at batch 64.
constexpr ProductShape kGates{5248, 512, 1536};

// Rows on both sides of a tile of 128 and of its parts of 16, more tiles than blocks; inner sizes of 1 to 24 blocks of
// 64; widths of one and of many slices, odd and even in number, and such as no kernel takes.
std::vector<ProductShape> swiglu_shapes() {
  return {{1, 512, 1536},   {15, 64, 128},    {63, 512, 1536}, {65, 128, 256},  {127, 192, 768}, {129, 320, 640},
          {128, 1536, 512}, {20000, 64, 256}, {100, 512, 100}, {100, 520, 256}, {70, 512, 192},  {3, 5, 7}};
}

std::vector<ProductShape> norm_shapes() {
  return {{1, 512, 512},    {79, 128, 512},   {81, 512, 512},  {127, 512, 512},   {129, 64, 512},
          {161, 256, 512},  {128, 1536, 512}, {300, 192, 256}, {17001, 256, 256}, {9001, 64, 512},
          {300, 256, 1024}, {100, 512, 384},  {100, 520, 512}, {3, 5, 7}};
}

at::Tensor product(const at::Tensor& x, const at::Tensor& weight) {
  const at::NoGradGuard no_grad;
  return linear(x, weight, weight);
}

// Also inner sizes and widths that end inside of a block and of a tile, and such as no kernel takes.
TEST(LinearTilesGpu, AsGoodAsPlainAten) {
  HRM_NEEDS_GPU();
  const WithTiles with_tiles;
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    for (const ProductShape& shape : std::vector<ProductShape>{{1, 512, 1536},
                                                               {15, 128, 256},
                                                               {127, 1536, 512},
                                                               {128, 512, 3072},
                                                               {129, 64, 256},
                                                               {129, 8, 8},
                                                               {300, 144, 264},
                                                               {65, 2000, 72},
                                                               {20001, 64, 256},
                                                               {100, 512, 97},
                                                               {100, 97, 512}}) {
      const std::string what = name_of(dtype, shape);
      const auto [x, weight, residual] = product_input(shape, shape.width, dtype, at::kCUDA);
      const at::Tensor ours = product(x, weight);
      expect_as_good(ours, at::linear(x, weight), at::linear(x.to(at::kDouble), weight.to(at::kDouble)), what);
      expect_same_bits(product(x, weight), ours, what + ", again");
    }
  }
}

TEST(LinearTilesGpu, AsGoodAsPlainAtenLarge) {
  HRM_NEEDS_GPU();
  const WithTiles with_tiles;
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    const auto [x, weight, residual] = product_input({5249, 512, 1536}, 1536, dtype, at::kCUDA);
    const at::Tensor all = product(x, weight);
    expect_as_good(all, at::linear(x, weight), at::linear(x.to(at::kDouble), weight.to(at::kDouble)), cat(dtype));
    // By tiles of 192 columns on 132 multiprocessors, the above by tiles of 256.
    for (const int64_t rows : {1000, 4224}) {
      expect_same_bits(product(x.narrow(0, 0, rows), weight), all.narrow(0, 0, rows), cat(dtype, ", rows ", rows));
    }
  }
}

// An infinity reaches its row and its column alone, also where they end inside of a tile.
TEST(LinearTilesGpu, NothingLeaksBetweenRowsOrColumns) {
  HRM_NEEDS_GPU();
  const WithTiles with_tiles;
  at::Tensor x = at::ones({130, 72}, at::device(at::kCUDA).dtype(at::kBFloat16));
  at::Tensor weight = at::ones({264, 72}, x.options());
  x[129][71] = INFINITY;
  weight[263][0] = INFINITY;
  at::Tensor expected = at::full({130, 264}, 72, x.options());
  expected[129].fill_(INFINITY);
  expected.select(1, 263).fill_(INFINITY);
  expect_same_bits(product(x, weight), expected);
}

TEST(LinearTilesGpu, InsideACapturedGraphLarge) {
  HRM_NEEDS_GPU();
  const ProductShape shape = kGates;  // a size that takes the kernel by itself
  const auto [x, weight, residual] = product_input(shape, shape.width, at::kBFloat16, at::kCUDA);
  at::Tensor out, act;
  const auto work = [&, &x = x, &weight = weight] {
    out = product(x, weight);
    act = linear_swiglu(x, weight);
  };
  Captured captured(work);
  for (uint64_t round = 0; round < 3; ++round) {
    x.copy_(normal(x.sizes(), 10 + round, at::kBFloat16));
    captured.replay();
    expect_same_bits(out, product(x, weight), cat("round ", round));
    expect_same_bits(act, linear_swiglu(x, weight), cat("act, round ", round));
  }
}

TEST(LinearTilesGpu, GradientsAsWithTheLibraryLarge) {
  HRM_NEEDS_GPU();
  const ProductShape shape = kGates;
  const auto [x, weight, residual] = product_input(shape, shape.width, at::kBFloat16, at::kCUDA);
  const at::Tensor grad = normal({shape.rows, shape.width}, 7, at::kBFloat16, at::kCUDA);
  const auto run = [&, &x = x, &weight = weight] {
    const at::Tensor leaf = x.detach().requires_grad_(), master = weight.to(at::kFloat).requires_grad_();
    const at::Tensor out = linear(leaf, weight, master);
    const at::Tensor grad_x = torch::autograd::grad({out}, {leaf}, {grad})[0];
    return std::tuple{out.detach(), grad_x, master.grad()};
  };
  const auto [out, grad_x, grad_weight] = run();
  const WithReference with_reference;
  const auto [plain_out, plain_grad_x, plain_grad_weight] = run();
  const at::Tensor exact = at::linear(x.to(at::kDouble), weight.to(at::kDouble));
  expect_as_good(out, plain_out, exact, "out");
  EXPECT_LE(largest_difference(grad_x, plain_grad_x), 0.02 * plain_grad_x.abs().max().item<double>());
  EXPECT_LE(largest_difference(grad_weight, plain_grad_weight), 0.001 * plain_grad_weight.abs().max().item<double>());
}

TEST(LinearSwigluGpu, AsGoodAsPlainAten) {
  HRM_NEEDS_GPU();
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kFloat}) {
    for (const ProductShape& shape : swiglu_shapes()) expect_good_linear_swiglu(shape, dtype, at::kCUDA);
  }
}

TEST(LinearSwigluGpu, BackwardAsGoodAsPlainAten) {
  HRM_NEEDS_GPU();
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kFloat}) {
    for (const ProductShape& shape : swiglu_shapes()) expect_good_linear_swiglu_backward(shape, dtype, at::kCUDA);
  }
}

TEST(LinearSwigluGpu, AsGoodAsPlainAtenLarge) {
  HRM_NEEDS_GPU();
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    expect_good_linear_swiglu(kGates, dtype, at::kCUDA);
    expect_good_linear_swiglu_backward(kGates, dtype, at::kCUDA);
    expect_good_linear_swiglu_backward({5248, 768, 2048}, dtype, at::kCUDA);
  }
}

// Long sums have a third stage and small buffers of gates and ups: also with fewer rows than a tile, and with several
// tiles for each block.
TEST(LinearSwigluGpu, BackwardOfLongSums) {
  HRM_NEEDS_GPU();
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    for (const ProductShape& shape :
         std::vector<ProductShape>{{1, 768, 256}, {129, 576, 512}, {300, 2048, 256}, {9000, 640, 768}}) {
      expect_good_linear_swiglu_backward(shape, dtype, at::kCUDA);
      const at::Tensor grad = normal({shape.rows, shape.inner}, 1, dtype, at::kCUDA),
                       down = normal({shape.inner, shape.width}, 2, dtype, at::kCUDA),
                       gate_up = normal({shape.rows, 2 * shape.width}, 3, dtype, at::kCUDA);
      expect_same_each_time([&] { return std::vector<at::Tensor>{linear_swiglu_backward(grad, down, gate_up)}; }, 5,
                            name_of(dtype, shape));
    }
  }
}

// The kernel for few rows has the first shape, the other one the second.
TEST(LinearRmsNormGpu, AsGoodAsPlainAtenLarge) {
  HRM_NEEDS_GPU();
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    expect_good_linear_rms_norm({5248, 1536, 512}, dtype, at::kCUDA);
    expect_good_linear_rms_norm({20001, 512, 512}, dtype, at::kCUDA);
  }
}

TEST(LinearRmsNormGpu, AsGoodAsPlainAten) {
  HRM_NEEDS_GPU();
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kFloat}) {
    for (const ProductShape& shape : norm_shapes()) expect_good_linear_rms_norm(shape, dtype, at::kCUDA);
  }
}

// The activation written and the one that gate_up stands for are the same.
TEST(LinearSwigluGpu, ActHasTheBitsOfSwiglu) {
  HRM_NEEDS_GPU();
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    const ProductShape shape{1000, 512, 1536};
    const auto [x, weight, residual] = product_input(shape, 2 * shape.width, dtype, at::kCUDA);
    const auto [act, gate_up] = linear_swiglu_forward(x, weight);
    expect_same_bits(act, swiglu(gate_up), cat(dtype));
  }
}

// Without gates and ups to write another kernel does it, with the same sums and roundings.
void expect_act_alone_the_same(const std::vector<ProductShape>& shapes) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    for (const ProductShape& shape : shapes) {
      const auto [x, weight, residual] = product_input(shape, 2 * shape.width, dtype, at::kCUDA);
      expect_same_bits(linear_swiglu(x, weight), std::get<0>(linear_swiglu_forward(x, weight)), name_of(dtype, shape));
    }
  }
}

TEST(LinearSwigluGpu, ActAloneHasTheSameBits) {
  HRM_NEEDS_GPU();
  expect_act_alone_the_same(swiglu_shapes());
  expect_act_alone_the_same({{3001, 128, 1536}, {3001, 256, 1536}, {1000, 704, 640}});
}

TEST(LinearSwigluGpu, ActAloneHasTheSameBitsLarge) {
  HRM_NEEDS_GPU();
  expect_act_alone_the_same({{31488, 512, 1536}});
}

TEST(LinearSwigluGpu, ActAloneNothingLeaksBetweenRows) {
  HRM_NEEDS_GPU();
  const auto [x, weight, residual] = product_input({200, 512, 256}, 512, at::kBFloat16, at::kCUDA);
  x[190].fill_(std::nan(""));
  const at::Tensor all = linear_swiglu(x, weight);
  EXPECT_TRUE(at::isnan(all[190]).all().item<bool>());
  EXPECT_EQ(at::isnan(all).sum().item<int64_t>(), 256);
  expect_same_bits(linear_swiglu(x.narrow(0, 0, 190), weight), all.narrow(0, 0, 190));
}

TEST(LinearSwigluGpu, ActAloneInsideACapturedGraph) {
  HRM_NEEDS_GPU();
  const ProductShape shape{5248, 512, 1536};
  const auto [x, weight, none] = product_input(shape, 2 * shape.width, at::kBFloat16, at::kCUDA);
  const auto [ignored, down, residual] = product_input({shape.rows, 1536, 512}, 512, at::kBFloat16, at::kCUDA);
  at::Tensor act, y;
  // Twice, so that the kernel also stands between one that writes its operand and one that reads its result.
  const auto work = [&, &x = x, &weight = weight, &down = down] {
    y = linear_rms_norm(linear_swiglu(x, weight), down, x, kNormEps);
    act = linear_swiglu(y, weight);
    y = linear_rms_norm(act, down, y, kNormEps);
  };
  Captured captured(work);
  const at::Tensor replayed_act = act, replayed_y = y;
  for (uint64_t round = 0; round < 3; ++round) {
    x.copy_(normal(x.sizes(), 10 + round, at::kBFloat16));
    captured.replay();
    const at::Tensor got_act = replayed_act.clone(), got_y = replayed_y.clone();
    work();
    expect_same_bits(got_act, act, cat("act, round ", round));
    expect_same_bits(got_y, y, cat("y, round ", round));
  }
}

// Values that overflow exp, infinities and NaNs go where plain ATen puts them.
TEST(LinearSwigluGpu, ExtremeValues) {
  HRM_NEEDS_GPU();
  at::Tensor x = at::zeros({6, 64}, at::device(at::kCUDA).dtype(at::kBFloat16));
  const std::vector<double> values = {0, 200, -200, 1e30, -1e30, std::nan("")};
  for (int64_t row = 0; row < 6; ++row) x[row][0] = values[static_cast<size_t>(row)];
  const at::Tensor weight = at::zeros({256, 64}, x.options());
  weight.select(1, 0).fill_(1);
  const at::Tensor ours = linear_swiglu(x, weight);
  const at::Tensor plain = std::get<0>(plain_linear_swiglu(x, weight));
  EXPECT_TRUE(at::allclose(ours, plain, 0.01, 1e-30, /*equal_nan=*/true)) << ours.select(1, 0) << plain.select(1, 0);
  const at::Tensor with_gate_up = std::get<0>(linear_swiglu_forward(x, weight));
  expect_same_bits(at::nan_to_num(with_gate_up, 12345), at::nan_to_num(ours, 12345));
}

TEST(LinearEpiloguesGpu, StridedAndMisalignedInputs) {
  HRM_NEEDS_GPU();
  const at::Tensor x = normal({70, 256}, 1, at::kBFloat16, at::kCUDA);
  const at::Tensor weight = normal({256, 256}, 2, at::kBFloat16, at::kCUDA).mul_(0.1);
  const at::Tensor residual = normal({70, 256}, 3, at::kBFloat16, at::kCUDA);
  const auto misaligned = [](const at::Tensor& tensor) {
    const at::Tensor shifted = at::empty({tensor.numel() + 1}, tensor.options()).slice(0, 1).view(tensor.sizes());
    return shifted.copy_(tensor);
  };
  const auto strided = [](const at::Tensor& tensor) { return tensor.t().contiguous().t(); };
  const at::Tensor act = linear_swiglu(x, weight), y = linear_rms_norm(x, weight, residual, kNormEps);
  // The library chooses another algorithm for another layout.
  const auto expect_same = cuda::sm90::is_hopper() ? &expect_same_bits : &expect_near;
  expect_same(linear_swiglu(misaligned(x), misaligned(weight)), act, "act, misaligned");
  expect_same(linear_swiglu(strided(x), strided(weight)), act, "act, strided");
  expect_same(linear_rms_norm(misaligned(x), misaligned(weight), misaligned(residual), kNormEps), y, "y, misaligned");
  expect_same(linear_rms_norm(strided(x), strided(weight), strided(residual), kNormEps), y, "y, strided");
  const at::Tensor sum = linear_rms_norm_add(x, weight, residual, kNormEps, residual);
  expect_same_bits(linear_rms_norm_add(x, weight, residual, kNormEps, misaligned(residual)), sum, "addend, misaligned");
  expect_same_bits(linear_rms_norm_add(x, weight, residual, kNormEps, strided(residual)), sum, "addend, strided");
}

// A block's several tiles follow each other within few steps, so that its warps come far apart unless they wait.
TEST(LinearEpiloguesGpu, ShortProductsSameBitsEachTimeLarge) {
  HRM_NEEDS_GPU();
  const WithTiles with_tiles;
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    for (const int64_t inner : {64, 128, 192, 256}) {
      const auto [x, weight, residual] = product_input({40000, inner, 256}, 512, dtype, at::kCUDA);
      const at::Tensor half = weight.narrow(0, 0, 256), down = half.t().contiguous(),
                       narrow = residual.narrow(1, 0, 256).contiguous();
      const auto run = [&, &x = x, &weight = weight, &residual = residual] {
        const at::Tensor gate_up = product(x, weight);
        return std::vector<at::Tensor>{gate_up, linear_swiglu(x, weight), linear_swiglu_backward(x, down, gate_up),
                                       linear_rms_norm(x, half, narrow, kNormEps),
                                       linear_rms_norm(x, weight, residual, kNormEps)};
      };
      expect_same_each_time(run, 10, cat(dtype, " inner ", inner));
    }
  }
}

TEST(LinearEpiloguesGpu, SameBitsEachTimeLarge) {
  HRM_NEEDS_GPU();
  const ProductShape shape{31488, 512, 1536};
  const auto [x, weight, none] = product_input(shape, 2 * shape.width, at::kBFloat16, at::kCUDA);
  const auto [ignored, down, residual] = product_input({shape.rows, 1536, 512}, 512, at::kBFloat16, at::kCUDA);
  const auto run = [&, &x = x, &weight = weight, &down = down, &residual = residual] {
    const auto [act, gate_up] = linear_swiglu_forward(x, weight);
    const auto [y, rstd] = linear_rms_norm_forward(act, down, residual, kNormEps);
    return std::vector<at::Tensor>{act, gate_up, y, rstd, linear_swiglu_backward(y, down, gate_up)};
  };
  expect_same_each_time(run, 10, "HRM's size at batch 384");
}

// Products so long that the blocks draw their tiles (ops/cuda/sm90/tile_draws.cuh), alone and beside work that holds
// multiprocessors when they start.
TEST(LinearSwigluGpu, DrawnTilesLarge) {
  HRM_NEEDS_GPU();
  const ProductShape shape{16385, 2048, 4096};
  // Of the second one all three kernels draw, and their tiles are in bands of eight row tiles, the last one of seven.
  for (const ProductShape& each : {shape, ProductShape{3841, 4160, 8704}}) {
    expect_good_linear_swiglu(each, at::kBFloat16, at::kCUDA);
    expect_good_linear_swiglu_backward(each, at::kBFloat16, at::kCUDA);
    expect_act_alone_the_same({each});
  }
  const auto [x, weight, none] = product_input(shape, 2 * shape.width, at::kBFloat16, at::kCUDA);
  const at::Tensor down = normal({shape.inner, shape.width}, 2, at::kBFloat16, at::kCUDA),
                   other = normal({4096, 4096}, 3, at::kBFloat16, at::kCUDA);
  const auto run = [&, &x = x, &weight = weight] {
    const auto [act, gate_up] = linear_swiglu_forward(x, weight);
    return std::vector<at::Tensor>{act, gate_up, linear_swiglu(x, weight), linear_swiglu_backward(x, down, gate_up)};
  };
  const std::vector<at::Tensor> alone = run();
  expect_same_bits(alone[2], alone[0], "act alone");
  const auto urgent = c10::cuda::getStreamFromPool(/*isHighPriority=*/true);
  for (int round = 0; round < 5; ++round) {
    c10::cuda::device_synchronize();
    {
      const c10::cuda::CUDAStreamGuard guard(urgent);
      for (int i = 0; i < 8; ++i) other.mm(other);
    }
    const std::vector<at::Tensor> beside = run();
    for (size_t i = 0; i < alone.size(); ++i)
      expect_same_bits(beside[i], alone[i], cat("result ", i, ", round ", round));
  }
  // The counters are 0 again in each replay.
  std::vector<at::Tensor> replayed;
  Captured captured([&] { replayed = run(); });
  for (int round = 0; round < 3; ++round) {
    captured.replay();
    for (size_t i = 0; i < alone.size(); ++i) {
      expect_same_bits(replayed[i], alone[i], cat("result ", i, ", replay ", round));
    }
  }
}

TEST(LinearEpiloguesGpu, InsideACapturedGraph) {
  HRM_NEEDS_GPU();
  const ProductShape shape{1000, 512, 768};
  const auto [x, weight, none] = product_input(shape, 2 * shape.width, at::kBFloat16, at::kCUDA);
  const auto [ignored, down, residual] = product_input({shape.rows, 768, 512}, 512, at::kBFloat16, at::kCUDA);
  at::Tensor act, gate_up, y, rstd, grad;
  const auto work = [&, &x = x, &weight = weight, &down = down, &residual = residual] {
    std::tie(act, gate_up) = linear_swiglu_forward(x, weight);
    std::tie(y, rstd) = linear_rms_norm_forward(act, down, residual, kNormEps);
    grad = linear_swiglu_backward(y, down, gate_up);
  };
  Captured captured(work);
  for (uint64_t round = 0; round < 3; ++round) {
    x.copy_(normal(x.sizes(), 10 + round, at::kBFloat16));
    residual.copy_(normal(residual.sizes(), 20 + round, at::kBFloat16));
    captured.replay();
    const std::vector<at::Tensor> replayed = {act.clone(), gate_up.clone(), y.clone(), rstd.clone(), grad.clone()};
    const auto [act_eager, gate_up_eager] = linear_swiglu_forward(x, weight);
    const auto [y_eager, rstd_eager] = linear_rms_norm_forward(act_eager, down, residual, kNormEps);
    expect_same_bits(replayed[0], act_eager, cat("act, round ", round));
    expect_same_bits(replayed[1], gate_up_eager, cat("gate_up, round ", round));
    expect_same_bits(replayed[2], y_eager, cat("y, round ", round));
    expect_same_bits(replayed[3], rstd_eager, cat("rstd, round ", round));
    expect_same_bits(replayed[4], linear_swiglu_backward(y_eager, down, gate_up_eager), cat("grad, round ", round));
  }
}

TEST(LinearEpiloguesGpu, ReferenceBackendIsComposed) {
  HRM_NEEDS_GPU();
  const ProductShape shape{100, 512, 512};
  const auto [x, weight, residual] = product_input(shape, 512, at::kBFloat16, at::kCUDA);
  const WithReference with_reference;
  expect_same_bits(linear_swiglu(x, weight), swiglu(at::linear(x, weight)));
  expect_same_bits(linear_rms_norm(x, weight, residual, kNormEps),
                   rms_norm_residual(at::linear(x, weight), residual, kNormEps));
  expect_same_bits(linear_rms_norm_add(x, weight, residual, kNormEps, x),
                   rms_norm_residual(at::linear(x, weight), residual, kNormEps) + x);
}

}  // namespace
}  // namespace hrm::ops
