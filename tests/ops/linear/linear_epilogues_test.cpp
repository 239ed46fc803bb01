#include "ops/linear/linear_epilogues_cases.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

TEST(LinearSwiglu, AsGoodAsPlainAten) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const ProductShape& shape : {ProductShape{1, 1, 1}, {7, 24, 5}, {33, 64, 96}, {5, 512, 256}}) {
      expect_good_linear_swiglu(shape, dtype, at::kCPU);
      expect_good_linear_swiglu_backward(shape, dtype, at::kCPU);
    }
  }
}

// More rows than are multiplied at a time, the last part shorter.
TEST(LinearSwiglu, ManyRows) {
  expect_good_linear_swiglu({1301, 16, 256}, at::kFloat, at::kCPU);
}

TEST(LinearRmsNorm, AsGoodAsPlainAten) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const ProductShape& shape : {ProductShape{1, 1, 1}, {7, 24, 5}, {33, 64, 96}, {5, 256, 512}}) {
      expect_good_linear_rms_norm(shape, dtype, at::kCPU);
    }
  }
}

TEST(LinearSwiglu, KeepsLeadingDimensions) {
  const at::Tensor x = normal({2, 3, 8}, 1, at::kFloat), weight = normal({10, 8}, 2, at::kFloat);
  const auto [act, gate_up] = linear_swiglu_forward(x, weight);
  EXPECT_EQ(act.sizes(), (std::vector<int64_t>{2, 3, 5}));
  EXPECT_EQ(gate_up.sizes(), (std::vector<int64_t>{2, 3, 10}));
  EXPECT_EQ(linear_swiglu(at::zeros({0, 3, 8}), weight).sizes(), (std::vector<int64_t>{0, 3, 5}));
}

TEST(LinearRmsNorm, KeepsLeadingDimensions) {
  const at::Tensor x = normal({2, 3, 8}, 1, at::kFloat), weight = normal({4, 8}, 2, at::kFloat);
  const auto [y, rstd] = linear_rms_norm_forward(x, weight, at::zeros({2, 3, 4}), kNormEps);
  EXPECT_EQ(y.sizes(), (std::vector<int64_t>{2, 3, 4}));
  EXPECT_EQ(rstd.sizes(), (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(linear_rms_norm(at::zeros({0, 3, 8}), weight, at::zeros({0, 3, 4}), kNormEps).sizes(),
            (std::vector<int64_t>{0, 3, 4}));
}

TEST(LinearSwiglu, BadInputIsNamed) {
  const at::Tensor x = at::zeros({2, 8});
  const auto message = [&](const at::Tensor& weight) { return error_of([&] { linear_swiglu(x, weight); }); };
  expect_message(message(at::zeros({10, 9})), {"hrm::linear_swiglu", "[2, 8]", "[10, 9]"});
  expect_message(message(at::zeros({9, 8})), {"hrm::linear_swiglu", "(2F, D)", "[9, 8]"});
  expect_message(message(at::zeros({10, 8}, at::kHalf)), {"hrm::linear_swiglu", "dtype", "Half"});
  expect_message(error_of([&] {
                   linear_swiglu_backward(x, at::zeros({8, 5}), at::zeros({2, 11}));
                 }),
                 {"hrm::linear_swiglu_backward", "[2, 8]", "[8, 5]", "[2, 11]"});
}

TEST(LinearRmsNorm, BadInputIsNamed) {
  const at::Tensor x = at::zeros({2, 8}), weight = at::zeros({4, 8});
  const auto message = [&](const at::Tensor& w, const at::Tensor& residual, double eps) {
    return error_of([&] { linear_rms_norm(x, w, residual, eps); });
  };
  expect_message(message(at::zeros({4, 9}), at::zeros({2, 4}), 1e-5), {"hrm::linear_rms_norm", "[2, 8]", "[4, 9]"});
  expect_message(message(weight, at::zeros({3, 4}), 1e-5), {"hrm::linear_rms_norm", "[3, 4]"});
  expect_message(message(weight, at::zeros({2, 4}, at::kHalf), 1e-5), {"hrm::linear_rms_norm", "dtype", "Half"});
  expect_message(message(weight, at::zeros({2, 4}), 0), {"hrm::linear_rms_norm", "eps"});
  const auto with_addend = [&](const at::Tensor& addend) {
    return error_of([&] { linear_rms_norm_add(x, weight, at::zeros({2, 4}), 1e-5, addend); });
  };
  expect_message(with_addend(at::zeros({4})), {"hrm::linear_rms_norm_add", "[4]", "[2, 4]"});
  expect_message(with_addend(at::zeros({2, 4}, at::kHalf)), {"hrm::linear_rms_norm_add", "Half", "Float"});
}

}  // namespace
}  // namespace hrm::ops
