#include "hrm/ops/attention.h"
#include "hrm/ops/rms_norm.h"
#include "hrm/ops/swiglu.h"
#include "ops/quantized/fp8_cases.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

const std::vector<at::ScalarType> kFp8Types = {at::kFloat, at::kBFloat16, at::kHalf};

TEST(Fp8, RoundsToNearestEvenAndSaturates) {
  for (const at::ScalarType dtype : kFp8Types) check_rounding(dtype, at::kCPU);
  check_nearest(at::kCPU);
}

TEST(Fp8, CodesKeepTheirValues) {
  // Every finite code is a fixed point; the order of fp8_order is that of the values.
  const at::Tensor codes = at::arange(256, at::kInt).to(at::kByte).view(at::kFloat8_e4m3fn);
  const at::Tensor slot = slot_of(1);
  const at::Tensor again = quantize_fp8(codes.to(at::kFloat), slot);
  const at::Tensor finite = at::isfinite(codes.to(at::kFloat));
  EXPECT_EQ(finite.sum().item<int64_t>(), 254);
  EXPECT_TRUE(at::equal(again.view(at::kByte).masked_select(finite), codes.view(at::kByte).masked_select(finite)));
  const at::Tensor order = fp8_order(codes).masked_select(finite);
  const at::Tensor sorted = codes.to(at::kFloat).masked_select(finite).index_select(0, std::get<1>(order.sort()));
  EXPECT_TRUE((sorted.slice(0, 1) >= sorted.slice(0, 0, -1)).all().item<bool>());
}

TEST(Fp8, ManyTensorsAsOneByOne) {
  for (const at::ScalarType dtype : kFp8Types) check_many(dtype, at::kCPU);
}

TEST(Fp8, SumAndItsRounding) {
  for (const at::ScalarType dtype : kFp8Types) {
    for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{3, 5, 7}, {1}, {0, 4}}) {
      check_add(sizes, dtype, at::kCPU);
    }
  }
}

TEST(Fp8, ScalesFollowTheDelayedMaximum) {
  check_update(at::kCPU);
}

TEST(Fp8, LinearIsTheProductOfWhatTheValuesStandFor) {
  for (const at::ScalarType dtype : kFp8Types) {
    for (const Fp8Shape& shape : {Fp8Shape{1, 16, 16}, {63, 128, 256}, {129, 512, 48}}) {
      check_linear(shape, dtype, at::kCPU, dtype == at::kFloat ? 1e-5 : 2 * unit_roundoff(dtype));
    }
  }
  const Fp8Operands o = fp8_operands({6, 32, 16}, 16, at::kCPU);
  const at::Tensor out = linear_fp8(o.x.view({2, 3, 32}), o.weight, o.x_slot, o.weight_slot, at::kFloat);
  EXPECT_EQ(out.sizes(), (std::vector<int64_t>{2, 3, 16}));
}

// The composition that the header states, rounding by rounding.
TEST(Fp8, EpiloguesAreTheOpsOf16Bits) {
  for (const at::ScalarType dtype : kFp8Types) {
    const Fp8Operands gates = fp8_operands({33, 64, 96}, 192, at::kCPU);
    at::Tensor slot = slot_of(20), want_slot = slot_of(20);
    const at::Tensor gate_up = linear_fp8(gates.x, gates.weight, gates.x_slot, gates.weight_slot, dtype);
    const at::Tensor act = linear_swiglu_fp8(gates.x, gates.weight, gates.x_slot, gates.weight_slot, slot, dtype);
    const at::Tensor want_act = at::silu(gate_up.narrow(1, 0, 96)) * gate_up.narrow(1, 96, 96);
    expect_same_bits(act.view(at::kByte), quantize_fp8(want_act, want_slot).view(at::kByte), "act");
    EXPECT_EQ(amax_of(slot), want_act.abs().max().item<float>());

    const Fp8Operands o = fp8_operands({33, 96, 64}, 64, at::kCPU);
    const at::Tensor residual = normal({33, 64}, 3, dtype);
    slot = slot_of(60), want_slot = slot_of(60);
    const auto [y, y8] = linear_rms_norm_fp8(o.x, o.weight, o.x_slot, o.weight_slot, residual, kFp8Eps, slot);
    const at::Tensor out = linear_fp8(o.x, o.weight, o.x_slot, o.weight_slot, dtype);
    const WithReference with_reference;
    const at::Tensor want = rms_norm_residual(out, residual, kFp8Eps);
    expect_same_bits(y, want, "y");
    expect_same_bits(y8.view(at::kByte), quantize_fp8(want, want_slot).view(at::kByte), "y8");
    EXPECT_EQ(amax_of(slot), want.abs().max().item<float>());
    const auto [y_alone, none] =
        linear_rms_norm_fp8(o.x, o.weight, o.x_slot, o.weight_slot, residual, kFp8Eps, std::nullopt);
    expect_same_bits(y_alone, want, "y without y8");
    EXPECT_EQ(none.numel(), 0);
  }
}

TEST(Fp8, AttentionIsThatOfTheDtype) {
  const at::Tensor qkv = normal({2, 9, 96}, 1, at::kBFloat16);
  const at::Tensor angle = at::arange(9 * 8, at::kFloat).view({9, 8}) * 0.3;
  for (const bool turned : {true, false}) {
    const at::Tensor cos = turned ? angle.cos() : at::Tensor(), sin = turned ? angle.sin() : at::Tensor();
    const at::Tensor slot = slot_of(100), want_slot = slot_of(100);
    const at::Tensor want = std::get<0>(attention_forward(qkv, 2, cos, sin));
    const at::Tensor got = attention_fp8(qkv.clone(), 2, cos, sin, slot);
    expect_same_bits(got.view(at::kByte), quantize_fp8(want, want_slot).view(at::kByte), cat("turned ", turned));
    EXPECT_EQ(amax_of(slot), want.abs().max().item<float>());
  }
}

// The error of two roundings to 3 bits of mantissa, in a product whose terms are independent: a few percent.
TEST(Fp8, ProductsAreNearThoseOf32Bits) {
  const at::Tensor x = normal({64, 512}, 1, at::kFloat), weight = normal({256, 512}, 2, at::kFloat) / 22.6;
  const at::Tensor x_slot = slot_of(96), weight_slot = slot_of(1500);
  const at::Tensor got =
      linear_fp8(quantize_fp8(x, x_slot), quantize_fp8(weight, weight_slot), x_slot, weight_slot, at::kFloat);
  const at::Tensor want = at::linear(x, weight);
  const double error = ((got - want).norm() / want.norm()).item<double>();
  EXPECT_GT(error, 0.01);
  EXPECT_LT(error, 0.05);
}

TEST(Fp8, HasNoDerivative) {
  const at::Tensor x = at::ones({2, 16}).requires_grad_();
  const at::Tensor slot = slot_of(1);
  expect_message(error_of([&] { quantize_fp8(x, slot); }), {"hrm::quantize_fp8", "no derivative"});
  expect_message(error_of([&] { add_fp8(at::ones({2, 16}), x, slot); }), {"hrm::add_fp8", "no derivative"});
  std::vector<at::Tensor> from = {x}, to = {at::empty({2, 16}, at::kFloat8_e4m3fn)};
  expect_message(error_of([&] { quantize_fp8_(from, to, make_fp8_slots(1, at::kCPU)); }),
                 {"hrm::quantize_fp8_", "no derivative"});
  const at::NoGradGuard no_grad;
  EXPECT_EQ(quantize_fp8(x, slot).sizes(), x.sizes());
}

TEST(Fp8, BadInputIsNamed) {
  const at::Tensor slot = slot_of(1), x = at::zeros({2, 32}, at::kFloat8_e4m3fn);
  const auto linear = [&](const at::Tensor& weight, const at::Tensor& weight_slot, at::ScalarType dtype) {
    return error_of([&] { linear_fp8(x, weight, slot, weight_slot, dtype); });
  };
  const at::Tensor weight = at::zeros({16, 32}, at::kFloat8_e4m3fn);
  expect_message(linear(at::zeros({16, 48}, at::kFloat8_e4m3fn), slot, at::kFloat),
                 {"hrm::linear_fp8", "[2, 32]", "[16, 48]"});
  expect_message(linear(at::zeros({17, 32}, at::kFloat8_e4m3fn), slot, at::kFloat), {"hrm::linear_fp8", "16"});
  expect_message(linear(at::zeros({16, 32}), slot, at::kFloat), {"hrm::linear_fp8", "Float8_e4m3fn", "Float"});
  expect_message(linear(weight, at::zeros({3}), at::kFloat), {"hrm::linear_fp8", "weight_slot", "[3]"});
  expect_message(linear(weight, slot, at::kDouble), {"hrm::linear_fp8", "Double"});
  expect_message(error_of([&] { linear_swiglu_fp8(x, weight, slot, slot, slot, at::kFloat); }),
                 {"hrm::linear_swiglu_fp8", "[16, 32]"});
  expect_message(error_of([&] {
                   linear_rms_norm_fp8(x, weight, slot, slot, at::zeros({3, 16}), kFp8Eps, std::nullopt);
                 }),
                 {"hrm::linear_rms_norm_fp8", "[3, 16]"});
  expect_message(error_of([&] {
                   linear_rms_norm_fp8(x, weight, slot, slot, at::zeros({2, 16}), 0, slot);
                 }),
                 {"hrm::linear_rms_norm_fp8", "eps"});
  expect_message(error_of([&] { quantize_fp8(at::zeros({2}, at::kDouble), slot); }), {"hrm::quantize_fp8", "Double"});
  expect_message(error_of([&] { add_fp8(at::zeros({2}), at::zeros({3}), slot); }), {"hrm::add_fp8", "[2]", "[3]"});
  expect_message(error_of([&] {
                   attention_fp8(at::zeros({1, 2, 95}), 2, {}, {}, slot);
                 }),
                 {"hrm::attention_fp8", "[1, 2, 95]"});
  expect_message(error_of([&] {
                   fp8_update_scales_(make_fp8_slots(2, at::kCPU), at::zeros({3, 4}), 0);
                 }),
                 {"hrm::fp8_update_scales_", "[2, 4]", "[3, 4]"});
}

}  // namespace
}  // namespace hrm::ops
