#include "hrm/ops/linear.h"

#include "ops/linear/linear_cases.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

TEST(Linear, AsGoodAsPlainAten) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const auto& [in, out] : std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {97, 24}, {24, 97}, {128, 512}}) {
      expect_good_linear(make_linear({4, 9}, in, out, dtype, at::kCPU), cat(dtype, " ", in, " to ", out));
    }
  }
  expect_good_linear(make_linear({}, 16, 8, at::kFloat, at::kCPU), "one row without a batch dimension");
  expect_good_linear(make_linear({2, 3, 5}, 16, 8, at::kBFloat16, at::kCPU), "four dimensions");
}

TEST(Linear, TheWeightsGradientAlone) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    expect_good_weight_gradient(make_linear({4, 9}, 24, 7, dtype, at::kCPU), cat(dtype));
  }
  expect_message(error_of([] {
                   linear_weight_gradient_(at::zeros({3, 5}), at::zeros({2, 3}), at::zeros({2, 4}));
                 }),
                 {"hrm::linear_accumulate_", "[3, 5]", "[2, 4]"});
}

TEST(Linear, NonContiguousInputs) {
  LinearCase c = make_linear({6, 5}, 16, 8, at::kFloat, at::kCPU);
  c.x = normal({5, 16, 6}, 1, at::kFloat).permute({2, 0, 1});
  c.grad_y = normal({5, 6, 8}, 4, at::kFloat).transpose(0, 1);
  expect_good_linear(c, "strided");
  c.x = c.x.to(at::kBFloat16);
  c.grad_y = at::ones({}, at::kBFloat16).expand({6, 5, 8});
  expect_good_linear(c, "strided bfloat16, expanded gradient");
}

TEST(Linear, ForwardIsPlainAten) {
  const LinearCase c = make_linear({10}, 32, 16, at::kBFloat16, at::kCPU);
  const at::Tensor copy = c.weight.to(at::kBFloat16);
  const at::Tensor master = c.weight.clone().requires_grad_();
  const at::Tensor bias = c.bias.clone().requires_grad_();
  const at::Tensor expected = at::linear(c.x, copy, c.bias.to(at::kBFloat16));
  expect_same_bits(linear(c.x, copy, master, bias), expected);
  const at::NoGradGuard no_grad;
  const at::Tensor y = linear(c.x, copy, master, bias);
  expect_same_bits(y, expected);
  EXPECT_FALSE(y.requires_grad());
}

TEST(Linear, FiniteDifferencesInFloat64) {
  const at::Tensor x = normal({3, 4}, 1, at::kDouble).requires_grad_();
  const at::Tensor weight = normal({2, 4}, 2, at::kDouble).requires_grad_();
  const at::Tensor bias = normal({2}, 3, at::kDouble).requires_grad_();
  const at::Tensor grad_y = normal({3, 2}, 4, at::kDouble);
  at::Tensor grad_weight = at::zeros({2, 4}, at::kDouble), grad_bias = at::zeros({2}, at::kDouble);
  linear(x, weight, weight, bias, grad_weight, grad_bias).backward(grad_y);
  const auto check = [&](const at::Tensor& leaf, const at::Tensor& grad) {
    for (int64_t i = 0; i < leaf.numel(); ++i) {
      const auto loss = [&](double move) {
        const at::NoGradGuard no_grad;
        at::Tensor flat = leaf.view(-1);
        flat[i] += move;
        const double value = (linear(x, weight, weight, bias) * grad_y).sum().item<double>();
        flat[i] -= move;
        return value;
      };
      EXPECT_NEAR(grad.reshape(-1)[i].item<double>(), (loss(1e-6) - loss(-1e-6)) / 2e-6, 1e-8) << i;
    }
  };
  check(x, x.grad());
  check(weight, grad_weight);
  check(bias, grad_bias);
}

TEST(Linear, SevenUsesAccumulateInFloat32) {
  expect_float32_accumulation(at::kCPU);
}

TEST(Linear, BuffersOfTheLeaves) {
  const LinearCase c = make_linear({10}, 6, 3, at::kFloat, at::kCPU);
  const at::Tensor master = c.weight.clone().requires_grad_();
  const at::Tensor bias = c.bias.clone().requires_grad_();
  // Without buffers: made on first use, then kept.
  linear(c.x, master, master, bias).backward(c.grad_y);
  ASSERT_TRUE(master.grad().defined() && bias.grad().defined());
  const void* address = master.grad().const_data_ptr();
  const at::Tensor once = master.grad().clone();
  linear(c.x, master, master, bias).backward(c.grad_y);
  EXPECT_EQ(master.grad().const_data_ptr(), address);
  EXPECT_LE(largest_difference(master.grad(), 2 * once), 1e-5);
  EXPECT_LE(largest_difference(bias.grad(), 2 * c.grad_y.sum(0)), 1e-5);
}

TEST(Linear, FrozenWeightAndPlainInput) {
  const LinearCase c = make_linear({10}, 6, 3, at::kFloat, at::kCPU);
  const at::Tensor frozen = c.weight.clone();
  const at::Tensor x = c.x.clone().requires_grad_();
  linear(x, frozen, frozen).backward(c.grad_y);
  EXPECT_LE(largest_difference(x.grad(), c.grad_y.mm(c.weight)), 1e-5);
  EXPECT_FALSE(frozen.grad().defined());
  EXPECT_FALSE(linear(c.x, frozen, frozen).requires_grad());
}

TEST(Linear, StaleCopyIsNoticed) {
  const LinearCase c = make_linear({10}, 6, 3, at::kBFloat16, at::kCPU);
  const at::Tensor master = c.weight.clone().requires_grad_();
  at::Tensor copy = c.weight.to(at::kBFloat16);
  const at::Tensor x = c.x.clone().requires_grad_();
  const at::Tensor y = linear(x, copy, master);
  copy.zero_();
  EXPECT_THROW(y.backward(c.grad_y), c10::Error);
}

TEST(Linear, GradientOfTheInputAloneAndAdded) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
    const at::Tensor weight = normal({24, 10}, 1, dtype), grad_y = normal({3, 7, 24}, 2, dtype);
    const at::Tensor before = normal({3, 7, 10}, 3, dtype);
    const at::Tensor rows = grad_y.view({21, 24});
    const at::Tensor exact = rows.to(at::kDouble).mm(weight.to(at::kDouble)).view({3, 7, 10});
    const at::Tensor plain = rows.mm(weight).view({3, 7, 10});
    expect_as_good(linear_grad_x(grad_y, weight), plain, exact, cat(dtype, " grad_x"));
    at::Tensor sum = before.clone();
    linear_grad_x_add_(sum, grad_y, weight);
    expect_as_good(sum, before + plain, exact + before.to(at::kDouble), cat(dtype, " grad_x added"));
    // Rows that lie apart.
    const at::Tensor apart = normal({3, 7, 32}, 2, dtype).narrow(2, 0, 24);
    expect_same_bits(linear_grad_x(apart, weight), linear_grad_x(apart.contiguous(), weight));
  }
  EXPECT_EQ(linear_grad_x(at::empty({0, 5, 24}), at::ones({24, 16})).sizes(), (std::vector<int64_t>{0, 5, 16}));
  at::Tensor none = at::empty({0, 16});
  linear_grad_x_add_(none, at::empty({0, 24}), at::ones({24, 16}));
  const at::Tensor x = normal({5, 4}, 1, at::kFloat), weight = normal({3, 4}, 2, at::kFloat);
  const at::Tensor padded = at::zeros({5, 8});
  linear_out(padded.narrow(1, 0, 3), x, weight);
  expect_same_bits(padded.narrow(1, 0, 3), x.mm(weight.t()));
  EXPECT_TRUE(padded.narrow(1, 3, 5).eq(0).all().item<bool>());
}

TEST(Linear, WithAResidual) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    expect_good_linear_add(make_linear({3, 5}, 12, 7, dtype, at::kCPU), cat(dtype));
  }
  const at::Tensor x = at::zeros({2, 4}), weight = at::zeros({3, 4});
  expect_message(error_of([&] {
                   linear_add(x, weight, weight, at::zeros({2, 4}));
                 }),
                 {"hrm::linear_add", "[2, 4]", "[3, 4]"});
  expect_message(error_of([&] {
                   linear_add(x, weight, weight, at::zeros({2, 3}, at::kHalf));
                 }),
                 {"hrm::linear_add", "Half", "[2, 3]"});
}

TEST(Linear, BadGradientsAreNamed) {
  const at::Tensor weight = at::zeros({3, 4}), grad_y = at::zeros({5, 3}), grad_x = at::zeros({5, 4});
  const auto plain = [](const at::Tensor& g, const at::Tensor& w) { return error_of([&] { linear_grad_x(g, w); }); };
  const auto added = [](const at::Tensor& x, const at::Tensor& g, const at::Tensor& w) {
    return error_of([&] { linear_grad_x_add_(x, g, w); });
  };
  ASSERT_EQ(plain(grad_y, weight), "");
  ASSERT_EQ(added(grad_x, grad_y, weight), "");
  expect_message(plain(at::zeros({5, 4}), weight), {"hrm::linear_grad_x", "[5, 4]", "[3, 4]"});
  expect_message(plain(grad_y.to(at::kBFloat16), weight), {"hrm::linear_grad_x", "BFloat16", "Float"});
  expect_message(added(at::zeros({6, 4}), grad_y, weight), {"hrm::linear_grad_x_add_", "[6, 4]", "[5, 3]"});
  expect_message(added(at::zeros({4, 5}).t(), grad_y, weight), {"hrm::linear_grad_x_add_", "contiguous"});
  expect_message(added(grad_x.to(at::kBFloat16), grad_y, weight), {"hrm::linear_grad_x_add_", "BFloat16"});
  expect_message(error_of([&] {
                   linear_out(at::zeros({5, 4}), at::zeros({5, 4}), weight);
                 }),
                 {"hrm::linear_out", "[5, 4]", "[3, 4]"});
}

TEST(Linear, BadInputIsNamed) {
  const at::Tensor x = at::zeros({5, 4});
  const at::Tensor weight = at::zeros({3, 4}).requires_grad_();
  const at::Tensor buffer = at::zeros({3, 4});
  const at::Tensor bias = at::zeros({3}).requires_grad_();
  using O = std::optional<at::Tensor>;
  const auto message = [&](const at::Tensor& a, const at::Tensor& w, const at::Tensor& m, O b, O gw, O gb) {
    return error_of([&] { linear(a, w, m, b, gw, gb); });
  };
  ASSERT_EQ(message(x, weight, weight, bias, buffer, at::zeros({3})), "");
  expect_message(message(at::zeros({5, 3}), weight, weight, {}, buffer, {}), {"hrm::linear", "[5, 3]", "[3, 4]"});
  expect_message(message(x.to(at::kBFloat16), weight, weight, {}, buffer, {}), {"hrm::linear", "dtype", "BFloat16"});
  expect_message(message(x, buffer, at::zeros({4, 3}).requires_grad_(), {}, buffer, {}),
                 {"hrm::linear", "master", "[4, 3]", "[3, 4]"});
  expect_message(message(x, weight, weight, at::zeros({4}), buffer, {}), {"hrm::linear", "bias", "[4]"});
  expect_message(message(x, weight, weight, {}, {}, {}), {"hrm::linear", "grad_weight must be given", "[3, 4]"});
  expect_message(message(x, weight, weight, bias, buffer, {}), {"hrm::linear", "grad_bias must be given", "[3]"});
  expect_message(message(x, weight, weight, {}, buffer.to(at::kBFloat16), {}), {"hrm::linear", "Float", "BFloat16"});
  expect_message(message(x, buffer.clone().requires_grad_(), weight, {}, buffer, {}),
                 {"hrm::linear", "weight_compute", "must not require a gradient"});
}

}  // namespace
}  // namespace hrm::ops
