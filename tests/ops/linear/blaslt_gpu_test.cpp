// Matrix products by cuBLASLt.
#include "ops/linear/cuda/blaslt.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "hrm/base/file.h"
#include "hrm/ops/gemm_tuning.h"
#include "hrm/ops/linear.h"
#include "ops/gpu_testing.h"
#include "ops/linear/gemm_tuning_impl.h"
#include "support/temp_dir.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT
using cuda::blaslt_gemm;
using cuda::GemmShape;

// How the matrices of a product lie: rows or columns side by side, `gap` elements between them, and `offset` elements
// from an aligned address.
struct Lie {
  bool transposed = false;
  int64_t gap = 0, offset = 0;
};

at::Tensor lay(const at::Tensor& values, const Lie& lie) {
  const int64_t rows = values.size(0), columns = values.size(1);
  const int64_t stored_rows = lie.transposed ? columns : rows, stored_columns = lie.transposed ? rows : columns;
  const int64_t pitch = stored_columns + lie.gap;
  const at::Tensor memory = at::full({lie.offset + stored_rows * pitch}, 7, values.options());
  const at::Tensor matrix = memory.slice(0, lie.offset).view({stored_rows, pitch}).slice(1, 0, stored_columns);
  const at::Tensor view = lie.transposed ? matrix.t() : matrix;
  view.copy_(values);
  return view;
}

// A cache of its own, and cuBLASLt for everything, while it lives.
class WithTuning {
 public:
  WithTuning() {
    set_gemm_cache(dir_.path());
    set_gemm_tuning(GemmTuning::auto_);
  }
  ~WithTuning() {
    set_gemm_tuning(GemmTuning::off);
    set_gemm_cache("");
  }
  // As the next process would find it.
  void start_again() {
    set_gemm_cache(dir_ / "somewhere else");
    set_gemm_cache(dir_.path());
  }
  const test::TempDir& dir() const { return dir_; }

 private:
  test::TempDir dir_;
};

struct Product {
  at::ScalarType in, out;
  int64_t m, n, k;
  Lie a, b;
  int64_t out_gap = 0, out_offset = 0;
};

std::string product_name(const Product& p, bool accumulates) {
  const auto lie = [](const Lie& l) { return cat(l.transposed ? "t" : "n", "+", l.gap, "@", l.offset); };
  return cat(p.in, ">", p.out, " ", p.m, "x", p.n, "x", p.k, " a ", lie(p.a), " b ", lie(p.b), " out +", p.out_gap, "@",
             p.out_offset, accumulates ? " +=" : " =");
}

// Whether cuBLASLt did it. Where it did not, nothing may have been written.
bool expect_product(const Product& p, bool accumulates) {
  const std::string what = product_name(p, accumulates);
  SCOPED_TRACE(what);
  const at::Tensor a = normal({p.m, p.k}, 1, p.in, at::kCUDA), b = normal({p.k, p.n}, 2, p.in, at::kCUDA);
  const at::Tensor before = normal({p.m, p.n}, 3, p.out, at::kCUDA);
  const at::Tensor out = lay(before, {false, p.out_gap, p.out_offset});
  const bool done = blaslt_gemm(out, lay(a, p.a), lay(b, p.b), accumulates);
  if (!done) {
    expect_same_bits(out, before, what);
    return false;
  }
  at::Tensor exact = a.to(at::kDouble).mm(b.to(at::kDouble));
  at::Tensor plain = a.to(p.out).mm(b.to(p.out));
  if (accumulates) {
    exact += before.to(at::kDouble);
    plain = at::addmm(before, a.to(p.out), b.to(p.out));
  }
  const double terms = a.to(at::kDouble).abs().mm(b.to(at::kDouble).abs()).max().item<double>();
  // Tensor cores cut partial sums off where ATen's float32 product rounds them: the error grows with their number.
  const double steps = std::max(1.0, static_cast<double>(p.k) / 1024);
  expect_as_good(out, plain, exact, what, steps * terms);
  if (p.out_gap > 0) {
    const at::Tensor between = out.as_strided({p.m - 1, p.out_gap}, {p.n + p.out_gap, 1}, p.out_offset + p.n);
    EXPECT_TRUE(between.eq(7).all().item<bool>()) << what << ": written beside the rows";
  }
  return true;
}

const std::vector<std::pair<at::ScalarType, at::ScalarType>> kProductTypes = {{at::kFloat, at::kFloat},
                                                                              {at::kBFloat16, at::kBFloat16},
                                                                              {at::kBFloat16, at::kFloat},
                                                                              {at::kHalf, at::kHalf},
                                                                              {at::kHalf, at::kFloat}};

TEST(BlasLtGpu, EveryLayoutOfAlignedOperands) {
  HRM_NEEDS_GPU();
  const WithoutTf32 without_tf32;
  const WithTuning tuning;
  for (const auto& [in, out] : kProductTypes) {
    for (const bool a_t : {false, true}) {
      for (const bool b_t : {false, true}) {
        EXPECT_TRUE(expect_product({in, out, 192, 64, 320, {a_t}, {b_t}}, a_t != b_t));
        EXPECT_TRUE(expect_product({in, out, 64, 128, 96, {a_t, 16, 32}, {b_t, 8, 64}, 8, 64}, a_t == b_t));
      }
    }
  }
}

// Nobody promises that cuBLASLt takes these; what it takes must be right.
TEST(BlasLtGpu, OddShapesAndMisalignedOperands) {
  HRM_NEEDS_GPU();
  const WithoutTf32 without_tf32;
  const WithTuning tuning;
  int done = 0, all = 0;
  for (const auto& [in, out] : kProductTypes) {
    for (const Product& p : std::vector<Product>{{in, out, 1, 1, 1, {}, {}},
                                                 {in, out, 97, 11, 33, {}, {true}},
                                                 {in, out, 1, 64, 40, {}, {}},
                                                 {in, out, 64, 1, 40, {true}, {}},
                                                 {in, out, 40, 24, 1, {}, {true}},
                                                 {in, out, 50, 30, 70, {true, 3, 1}, {false, 5, 3}, 1, 1},
                                                 {in, out, 128, 64, 64, {false, 0, 1}, {true, 0, 0}, 0, 0},
                                                 {in, out, 128, 64, 64, {false, 1, 0}, {true, 0, 0}, 0, 0},
                                                 {in, out, 128, 64, 64, {}, {}, 0, 1}}) {
      ++all;
      done += expect_product(p, /*accumulates=*/all % 2 == 0) ? 1 : 0;
    }
  }
  std::printf("cuBLASLt did %d of %d odd products\n", done, all);
}

// The shapes of a training step: gradients of the gate_up projection and the head's padded rows.
TEST(BlasLtGpu, ProductsOfATrainingStep) {
  HRM_NEEDS_GPU();
  const WithTuning tuning;
  const int64_t rows = 64 * 82;
  EXPECT_TRUE(expect_product({at::kBFloat16, at::kFloat, 3072, 512, rows, {true}, {}}, true));
  EXPECT_TRUE(expect_product({at::kBFloat16, at::kBFloat16, rows, 512, 3072, {}, {}}, true));
  EXPECT_TRUE(expect_product({at::kBFloat16, at::kBFloat16, rows, 512, 512, {}, {}}, false));
  EXPECT_TRUE(expect_product({at::kBFloat16, at::kBFloat16, rows, 11, 512, {}, {true}, 5}, false));
  EXPECT_TRUE(expect_product({at::kBFloat16, at::kBFloat16, rows, 512, 11, {false, 5}, {}}, false));
  EXPECT_TRUE(expect_product({at::kBFloat16, at::kFloat, 11, 512, rows, {true, 5}, {}}, true));
  std::printf("%s\n", gemm_tuning_text().c_str());
}

TEST(BlasLtGpu, NothingToMultiplyIsLeftToOthers) {
  HRM_NEEDS_GPU();
  const WithTuning tuning;
  const auto bf16 = at::device(at::kCUDA).dtype(at::kBFloat16);
  const auto empty = [&](int64_t m, int64_t n, int64_t k) {
    return blaslt_gemm(at::empty({m, n}, bf16), at::empty({m, k}, bf16), at::empty({k, n}, bf16), false);
  };
  EXPECT_FALSE(empty(0, 8, 8));
  EXPECT_FALSE(empty(8, 0, 8));
  EXPECT_FALSE(empty(8, 8, 0));
  EXPECT_FALSE(
      blaslt_gemm(at::empty({8, 8}, bf16), at::empty({8, 1}, bf16).expand({8, 8}), at::empty({8, 8}, bf16), false));
  const auto f64 = bf16.dtype(at::kDouble);
  EXPECT_FALSE(blaslt_gemm(at::empty({8, 8}, f64), at::empty({8, 8}, f64), at::empty({8, 8}, f64), false));
  // The ops around it.
  const at::Tensor weight = at::ones({24, 16}, bf16);
  EXPECT_EQ(linear_grad_x(at::empty({0, 5, 24}, bf16), weight).sizes(), (std::vector<int64_t>{0, 5, 16}));
  at::Tensor grad_x = at::empty({0, 16}, bf16);
  linear_grad_x_add_(grad_x, at::empty({0, 24}, bf16), weight);
  at::Tensor grad_weight = at::full({24, 16}, 0.5, bf16.dtype(at::kFloat));
  linear_accumulate_(grad_weight, at::empty({0, 24}, bf16), at::empty({0, 16}, bf16));
  EXPECT_TRUE(grad_weight.eq(0.5).all().item<bool>());
}

struct Operands {
  at::Tensor a, b, out;
};

Operands large(uint64_t seed = 1) {
  return {normal({640, 512}, seed, at::kBFloat16, at::kCUDA), normal({512, 768}, seed + 1, at::kBFloat16, at::kCUDA),
          at::zeros({640, 768}, at::device(at::kCUDA))};
}

TEST(BlasLtGpu, TheNextStartNeitherTimesNorDiffers) {
  HRM_NEEDS_GPU();
  WithTuning tuning;
  const Operands o = large();
  ASSERT_TRUE(blaslt_gemm(o.out, o.a, o.b, true));
  const at::Tensor first = o.out.clone();
  EXPECT_EQ(gemm_tuning_report().timed, 1);
  EXPECT_EQ(gemm_tuning_report().reused, 0);
  o.out.zero_();
  ASSERT_TRUE(blaslt_gemm(o.out, o.a, o.b, true));
  expect_same_bits(o.out, first, "the second call");
  EXPECT_EQ(gemm_tuning_report().timed, 1);
  ASSERT_TRUE(blaslt_gemm(o.out, o.a, o.b, false));
  EXPECT_EQ(gemm_tuning_report().timed, 2) << "a product that is not added is another one";
  const std::string file = gemm_tuning_report().file;
  ASSERT_TRUE(std::filesystem::exists(file));
  const std::string written = read_text(file, ExitCode::environment);

  tuning.start_again();
  o.out.zero_();
  ASSERT_TRUE(blaslt_gemm(o.out, o.a, o.b, true));
  expect_same_bits(o.out, first, "the next start");
  EXPECT_EQ(gemm_tuning_report().timed, 0);
  EXPECT_EQ(gemm_tuning_report().reused, 1);
  EXPECT_EQ(gemm_tuning_report().seconds, 0);
  EXPECT_EQ(read_text(file, ExitCode::environment), written);
  const auto json = nlohmann::json::parse(written);
  for (const auto& [key, choice] : json.at("choices").items()) {
    std::printf("%s: %.2f us, untuned %.2f us\n", key.c_str(), choice.at("us").get<double>(),
                choice.at("untuned_us").get<double>());
    EXPECT_GT(choice.at("us").get<double>(), 0);
    EXPECT_LE(choice.at("us").get<double>(), choice.at("untuned_us").get<double>());
  }
}

TEST(BlasLtGpu, AStoredAlgorithmThatCannotRunIsReplaced) {
  HRM_NEEDS_GPU();
  WithTuning tuning;
  const Operands o = large();
  ASSERT_TRUE(blaslt_gemm(o.out, o.a, o.b, false));
  const at::Tensor first = o.out.clone();
  const std::filesystem::path file = gemm_tuning_report().file;
  auto json = nlohmann::json::parse(read_text(file, ExitCode::environment));
  for (auto& choice : json.at("choices")) choice["algorithm"] = "no algorithm";
  write_text_atomic(file, json.dump());
  tuning.start_again();
  o.out.zero_();
  ASSERT_TRUE(blaslt_gemm(o.out, o.a, o.b, false));
  EXPECT_LE(largest_difference(o.out, first), 1e-3);
  EXPECT_EQ(gemm_tuning_report().timed, 1);
  EXPECT_EQ(read_text(file, ExitCode::environment).find("no algorithm"), std::string::npos);
}

TEST(BlasLtGpu, InsideACapturedGraph) {
  HRM_NEEDS_GPU();
  const WithTuning tuning;
  const Operands o = large();
  // Enough of the sum's length to tempt cuBLASLt to split it, which needs a workspace.
  const at::Tensor x = normal({4096, 512}, 5, at::kBFloat16, at::kCUDA);
  const at::Tensor grad_y = normal({4096, 256}, 6, at::kBFloat16, at::kCUDA);
  const at::Tensor grad_weight = at::zeros({256, 512}, at::device(at::kCUDA));
  bool all = true;
  const auto work = [&] {
    grad_weight.zero_();
    all = blaslt_gemm(grad_weight, grad_y.t(), x, true) && all;
    all = blaslt_gemm(grad_weight, grad_y.t(), x, true) && all;
    all = blaslt_gemm(o.out, o.a, o.b, false) && all;
  };
  Captured captured(work);
  ASSERT_TRUE(all);
  for (uint64_t round = 0; round < 3; ++round) {
    x.copy_(normal({4096, 512}, 10 + round, at::kBFloat16));
    o.a.copy_(normal({640, 512}, 20 + round, at::kBFloat16));
    captured.replay();
    const at::Tensor weight = grad_weight.clone(), out = o.out.clone();
    work();
    expect_same_bits(weight, grad_weight, "sum over rows");
    expect_same_bits(out, o.out, "plain product");
  }
  EXPECT_EQ(gemm_tuning_report().untimed, 0);
}

TEST(BlasLtGpu, AShapeFirstMetInACaptureIsNotTimed) {
  HRM_NEEDS_GPU();
  WithTuning tuning;
  const Operands o = large();
  // Loads the library and its kernels; then nobody knows the shape any more.
  ASSERT_TRUE(blaslt_gemm(o.out, o.a, o.b, false));
  std::filesystem::remove(gemm_tuning_report().file);
  tuning.start_again();
  o.out.zero_();
  at::cuda::device_synchronize();
  at::cuda::CUDAGraph graph;
  bool done = false;
  const c10::cuda::CUDAStream stream = c10::cuda::getStreamFromPool();
  {
    const c10::cuda::CUDAStreamGuard guard(stream);
    graph.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
    done = blaslt_gemm(o.out, o.a, o.b, false);
    graph.capture_end();
    graph.replay();
    stream.synchronize();
  }
  ASSERT_TRUE(done);
  EXPECT_EQ(gemm_tuning_report().timed, 0);
  EXPECT_EQ(gemm_tuning_report().untimed, 1);
  const at::Tensor from_graph = o.out.clone();
  o.out.zero_();
  ASSERT_TRUE(blaslt_gemm(o.out, o.a, o.b, false));
  expect_same_bits(o.out, from_graph, "the same algorithm afterwards");
  EXPECT_EQ(gemm_tuning_report().timed, 0);
}

// The ops of the backward pass with tuning and without.
TEST(BlasLtGpu, OpsUseItForLargeProductsAlone) {
  HRM_NEEDS_GPU();
  const WithTuning tuning;
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    const at::Tensor weight = normal({768, 256}, 1, dtype, at::kCUDA) / 16;
    const at::Tensor grad_y = normal({4, 200, 768}, 2, dtype, at::kCUDA),
                     x = normal({4, 200, 256}, 3, dtype, at::kCUDA);
    const at::Tensor rows = grad_y.view({800, 768});
    const int64_t timed = gemm_tuning_report().timed;
    const at::Tensor exact = rows.to(at::kDouble).mm(weight.to(at::kDouble));
    expect_as_good(linear_grad_x(grad_y, weight).view({800, 256}), rows.mm(weight), exact, "grad_x");
    at::Tensor sum = x.clone();
    linear_grad_x_add_(sum, grad_y, weight);
    expect_as_good(sum.view({800, 256}), x.view({800, 256}).addmm(rows, weight),
                   exact + x.view({800, 256}).to(at::kDouble), "grad_x added");
    at::Tensor grad_weight = at::full({768, 256}, 0.5, at::device(at::kCUDA));
    linear_accumulate_(grad_weight, rows, x.view({800, 256}));
    const at::Tensor exact_weight = rows.to(at::kDouble).t().mm(x.view({800, 256}).to(at::kDouble)) + 0.5;
    EXPECT_LE(largest_difference(grad_weight, exact_weight), 1e-4 * exact_weight.abs().max().item<double>());
    EXPECT_EQ(gemm_tuning_report().timed, timed + 3) << dtype;
    // Small ones, and the reference, are ATen's.
    linear_grad_x(grad_y.slice(0, 0, 1).slice(1, 0, 8), weight);
    {
      const WithReference with_reference;
      linear_grad_x(grad_y, weight.clone());
    }
    EXPECT_EQ(gemm_tuning_report().timed, timed + 3) << dtype;
  }
}

// cuBLASLt's matrices lie column by column. What describe_gemm says of the tensors, read that way, must be the product.
TEST(BlasLtGpu, WhatTheDescriptionsMeanColumnByColumn) {
  HRM_NEEDS_GPU();
  for (const Product& p : std::vector<Product>{{at::kFloat, at::kFloat, 5, 7, 3, {}, {}},
                                               {at::kFloat, at::kFloat, 5, 7, 3, {true, 2, 1}, {false, 1, 2}, 4, 3},
                                               {at::kFloat, at::kFloat, 5, 7, 3, {false, 1}, {true, 3}, 1},
                                               {at::kFloat, at::kFloat, 1, 7, 3, {true}, {true}},
                                               {at::kFloat, at::kFloat, 5, 1, 3, {true}, {true}},
                                               {at::kFloat, at::kFloat, 5, 7, 1, {true}, {false}},
                                               {at::kFloat, at::kFloat, 5, 7, 1, {false}, {true}}}) {
    const at::Tensor a = lay(normal({p.m, p.k}, 1, at::kFloat), p.a), b = lay(normal({p.k, p.n}, 2, at::kFloat), p.b);
    const at::Tensor out = lay(at::zeros({p.m, p.n}), {false, p.out_gap, p.out_offset});
    GemmShape s;
    ASSERT_TRUE(cuda::describe_gemm(out, a, b, false, s)) << product_name(p, false);
    ASSERT_GE(s.out_pitch, s.n);
    ASSERT_GE(s.a_pitch, s.a_t ? s.m : s.k);
    ASSERT_GE(s.b_pitch, s.b_t ? s.k : s.n);
    const float *pa = a.const_data_ptr<float>(), *pb = b.const_data_ptr<float>();
    float* po = out.mutable_data_ptr<float>();
    // out^T = op(b) op(a): a matrix (r, c) without transposition has element (i, j) at i + j * pitch, with at j + i *
    // pitch.
    for (int64_t i = 0; i < s.n; ++i) {
      for (int64_t j = 0; j < s.m; ++j) {
        double sum = 0;
        for (int64_t l = 0; l < s.k; ++l) {
          sum += double{pb[s.b_t ? l + i * s.b_pitch : i + l * s.b_pitch]} *
                 double{pa[s.a_t ? j + l * s.a_pitch : l + j * s.a_pitch]};
        }
        po[i + j * s.out_pitch] = static_cast<float>(sum);
      }
    }
    EXPECT_LE(largest_difference(out, a.to(at::kDouble).mm(b.to(at::kDouble))), 1e-5) << product_name(p, false);
  }
  GemmShape s;
  const at::Tensor square = at::zeros({4, 4});
  EXPECT_FALSE(cuda::describe_gemm(square.t(), square, square, false, s)) << "the output must have its rows";
  EXPECT_FALSE(cuda::describe_gemm(square, at::zeros({4, 1}).expand({4, 4}), square, false, s));
  EXPECT_FALSE(cuda::describe_gemm(square, at::zeros({8, 8}).slice(0, 0, 8, 2).slice(1, 0, 8, 2), square, false, s));
}

}  // namespace
}  // namespace hrm::ops
