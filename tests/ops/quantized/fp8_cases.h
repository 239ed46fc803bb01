#pragma once
// Checks of the fp8 ops that hold on every device.

#include <cstring>
#include <limits>

#include "hrm/ops/fp8.h"
#include "ops/op_testing.h"

namespace hrm::ops::testing {

constexpr double kFp8Eps = 1e-5;

// A slot of this scale whose amax is still 0.
inline at::Tensor slot_of(double scale, at::Device device = at::kCPU) {
  const at::Tensor slot = make_fp8_slots(1, device).select(0, 0);
  slot.select(0, 0).fill_(scale);
  slot.select(0, 1).copy_(slot.select(0, 0).reciprocal());
  return slot;
}

inline float amax_of(const at::Tensor& slot) {
  return slot.to(at::kCPU).data_ptr<float>()[2];
}

// What e4m3 values stand for, in float64.
inline at::Tensor dequantized(const at::Tensor& values, const at::Tensor& slot) {
  return values.to(at::kFloat).to(at::kDouble) * slot.select(0, 1).to(at::kDouble);
}

// All 256 e4m3 codes in the order of their values, so that neighbours differ by 1; both zeros are 0.
inline at::Tensor fp8_order(const at::Tensor& values) {
  const at::Tensor codes = values.to(at::kCPU).view(at::kByte).to(at::kInt);
  return at::where(codes >= 128, 128 - codes, codes);
}

// e4m3 results of sums in different orders: the rounded value lies on one side of a boundary or the other. The tensor
// cores keep about 14 bits of a sum of e4m3 products, so that a result near zero may also be off by `part` of its row's
// size, which is many of the small steps there.
inline void expect_close_fp8(const at::Tensor& ours, const at::Tensor& want, const std::string& what,
                             double part = 0.004) {
  ASSERT_EQ(ours.sizes(), want.sizes()) << what;
  ASSERT_EQ(ours.scalar_type(), at::kFloat8_e4m3fn) << what;
  if (want.numel() == 0) return;
  const auto values = [](const at::Tensor& t) { return t.to(at::kFloat).to(at::kDouble); };
  const at::Tensor a = values(ours), b = values(want);
  ASSERT_TRUE(at::isfinite(a).all().item<bool>()) << what;
  const at::Tensor row = b.square().mean(-1, /*keepdim=*/true).sqrt();
  const at::Tensor step = b.abs().clamp_min(0x1p-6) / 8;  // to the next value, at most
  const at::Tensor steps = (((a - b).abs() - part * row).clamp_min(0) / step).flatten();
  const at::Tensor numbers = at::stack({(steps > 1.001).to(at::kDouble).mean(), steps.max()}).to(at::kCPU);
  const auto* number = numbers.const_data_ptr<double>();
  const auto worst = [&] { return describe_element(a, b, steps.argmax().item<int64_t>()); };
  EXPECT_LE(number[0], 1e-3) << what << ": part of all that is more than one step apart; worst: " << worst();
  EXPECT_LE(number[1], 2.001) << what << ": steps apart; " << worst();
}

// Values of dtype within a part of their row's size.
inline void expect_close_rows(const at::Tensor& ours, const at::Tensor& want, double part, const std::string& what) {
  ASSERT_EQ(ours.sizes(), want.sizes()) << what;
  ASSERT_EQ(ours.scalar_type(), want.scalar_type()) << what;
  if (want.numel() == 0) return;
  const at::Tensor a = ours.to(at::kDouble), b = want.to(at::kDouble);
  ASSERT_TRUE(at::isfinite(a).all().item<bool>()) << what;
  const at::Tensor row = b.square().mean(-1, /*keepdim=*/true).sqrt().clamp_min_(1e-30);
  const at::Tensor error = ((a - b).abs() / (row + b.abs())).flatten();
  EXPECT_LE(error.max().item<double>(), part)
      << what << ": error beside the row's size; " << describe_element(a, b, error.argmax().item<int64_t>()) << "; "
      << (error > part).sum().item<int64_t>() << " of " << error.numel() << " are too far away";
}

// Rows of a matrix, its inner size, and the width of the result.
struct Fp8Shape {
  int64_t rows, inner, width;
};

inline std::string name_of(at::ScalarType dtype, const Fp8Shape& shape) {
  return cat(dtype, " rows ", shape.rows, " inner ", shape.inner, " width ", shape.width);
}

struct Fp8Operands {
  at::Tensor x, weight, x_slot, weight_slot;
};

// Operands whose products are about 1 in size, under scales other than 1.
inline Fp8Operands fp8_operands(const Fp8Shape& shape, int64_t out, at::Device device) {
  Fp8Operands o;
  o.x_slot = slot_of(96, device);
  o.weight_slot = slot_of(448 / 0.3, device);
  const double scale = 1 / std::sqrt(static_cast<double>(shape.inner));
  const at::Tensor weight = normal({out, shape.inner}, 2, at::kFloat) * scale;
  o.x = quantize_fp8(normal({shape.rows, shape.inner}, 1, at::kFloat, device), o.x_slot);
  o.weight = quantize_fp8((weight * at::linspace(0.5, 1.5, out).unsqueeze(1)).to(device), o.weight_slot);
  return o;
}

// The float64 product of what the operands stand for, on their device.
inline at::Tensor exact_product(const Fp8Operands& o) {
  return at::matmul(dequantized(o.x, o.x_slot), dequantized(o.weight, o.weight_slot).t());
}

// Each of the 256 codes from its own value, halves to even, saturation, infinities and NaN; amax as bits.
inline void check_rounding(at::ScalarType dtype, at::Device device) {
  const double inf = std::numeric_limits<double>::infinity();
  struct Case {
    double from, to;
  };
  // Steps of 1 between 8 and 16, of 32 above 256, of 2^-9 near zero.
  for (const Case& c : std::vector<Case>{{0, 0},
                                         {1, 1},
                                         {-1.0625, -1},
                                         {1.1875, 1.25},
                                         {8.5, 8},
                                         {9.5, 10},
                                         {-9.5, -10},
                                         {448, 448},
                                         {449, 448},
                                         {464, 448},
                                         {1000, 448},
                                         {-60000, -448},
                                         {0x1p-9, 0x1p-9},
                                         {0x1p-10, 0},
                                         {0x1.8p-10, 0x1p-9},
                                         {inf, 448},
                                         {-inf, -448}}) {
    for (const double scale : {1.0, 4.0, 0.25}) {
      // The stored value follows x * scale; 60000 is the largest that float16 holds here.
      const double x = c.from / scale;
      if (dtype == at::kHalf && std::abs(x) > 65504 && std::isfinite(x)) continue;
      const at::Tensor slot = slot_of(scale, device);
      const at::Tensor from = at::full({5}, x, at::device(device).dtype(dtype));
      if (from[0].item<double>() != x) continue;  // not a value of this dtype
      const at::Tensor got = quantize_fp8(from, slot);
      EXPECT_EQ(got.scalar_type(), at::kFloat8_e4m3fn);
      EXPECT_EQ(got.to(at::kCPU).to(at::kFloat)[4].item<double>(), c.to) << c.from << " times " << scale;
      EXPECT_EQ(amax_of(slot), std::abs(static_cast<float>(x)));
    }
  }
  const at::Tensor slot = slot_of(2, device);
  const at::Tensor bad = at::full({3}, std::nan(""), at::device(device).dtype(dtype));
  EXPECT_TRUE(at::isnan(quantize_fp8(bad, slot).to(at::kCPU).to(at::kFloat)).all().item<bool>());
  EXPECT_TRUE(std::isnan(amax_of(slot)));
  quantize_fp8(at::ones({3}, bad.options()), slot);
  EXPECT_TRUE(std::isnan(amax_of(slot))) << "a NaN must not be forgotten before the update";
}

// Of a float32 tensor's elements: the nearest e4m3 values, found by trying all of them.
inline void check_nearest(at::Device device) {
  const at::Tensor codes = at::arange(256, at::kInt).to(at::kByte).view(at::kFloat8_e4m3fn).to(at::kFloat);
  const at::Tensor values = codes.masked_select(at::isfinite(codes));  // 254
  const at::Tensor x = normal({2000}, 7, at::kFloat) * at::linspace(0.001, 200, 2000);
  const at::Tensor slot = slot_of(3, device);
  const at::Tensor got = quantize_fp8(x.to(device), slot).to(at::kCPU).to(at::kFloat);
  const at::Tensor scaled = (x * 3).clamp(-448, 448);
  const at::Tensor best = std::get<0>((scaled.unsqueeze(1) - values.unsqueeze(0)).abs().min(1));
  EXPECT_TRUE(at::equal((scaled - got).abs(), best));
  EXPECT_EQ(amax_of(slot), x.abs().max().item<float>());
}

inline void check_many(at::ScalarType dtype, at::Device device) {
  std::vector<at::Tensor> from, to;
  const at::Tensor slots = make_fp8_slots(150, device);
  for (int64_t i = 0; i < 150; ++i) {
    // More than one launch takes, empty ones and one of several blocks among them.
    const int64_t size = i == 3 ? 0 : i == 20 ? 70000 : 1 + 37 * i;
    from.push_back(
        (normal({size}, static_cast<uint64_t>(i), at::kFloat) * (1 + 0.1 * static_cast<double>(i))).to(device, dtype));
    to.push_back(at::empty({size}, at::device(device).dtype(at::kFloat8_e4m3fn)));
    slots[i][0].fill_(1 + static_cast<double>(i % 7));
  }
  quantize_fp8_(from, to, slots);
  const at::Tensor host = slots.to(at::kCPU);
  for (int64_t i = 0; i < 150; ++i) {
    const at::Tensor slot = slot_of(1 + static_cast<double>(i % 7), device);
    const at::Tensor want = quantize_fp8(from[static_cast<size_t>(i)], slot);
    expect_same_bits(to[static_cast<size_t>(i)].view(at::kByte), want.view(at::kByte), cat("tensor ", i));
    EXPECT_EQ(host[i][2].item<float>(), amax_of(slot)) << "tensor " << i;
    EXPECT_EQ(host[i][3].item<float>(), 0) << "tensor " << i;
  }
}

inline void check_add(at::IntArrayRef sizes, at::ScalarType dtype, at::Device device) {
  const std::string what = cat(dtype, " ", sizes);
  const at::Tensor a = normal(sizes, 1, dtype, device), b = normal(sizes, 2, dtype, device);
  const at::Tensor slot = slot_of(50, device), want_slot = slot_of(50, device);
  const auto [sum, sum8] = add_fp8(a, b, slot);
  expect_same_bits(sum, a + b, what);
  expect_same_bits(sum8.view(at::kByte), quantize_fp8(a + b, want_slot).view(at::kByte), what);
  EXPECT_EQ(amax_of(slot), amax_of(want_slot)) << what;
}

inline void check_update(at::Device device) {
  const float inf = std::numeric_limits<float>::infinity();
  const at::Tensor slots = make_fp8_slots(6, device), history = at::zeros({6, 3}, slots.options());
  const auto update = [&](std::vector<float> amax, double margin) {
    slots.select(1, 2).copy_(at::tensor(amax));
    fp8_update_scales_(slots, history, margin);
    EXPECT_EQ(slots.select(1, 2).abs().sum().item<float>(), 0) << "amax must start again";
    EXPECT_TRUE(at::equal(slots.select(1, 1), slots.select(1, 0).reciprocal()));
  };
  const auto scale = [&](int64_t i) { return slots[i][0].item<float>(); };
  // Never written: the scale stays. Then by the maximum of three steps, and it grows when the maximum falls out.
  update({0, 2, 4, inf, std::nanf(""), 1e-42f}, 0);
  EXPECT_EQ(scale(0), 1);
  EXPECT_EQ(scale(1), 224);
  EXPECT_EQ(scale(2), 112);
  EXPECT_EQ(scale(3), 1) << "nothing finite has been seen";
  EXPECT_EQ(scale(4), 1);
  EXPECT_EQ(scale(5), 1) << "448 / 1e-42 is not finite";
  update({0, 1, 8, 7, 2, 0}, 0);
  EXPECT_EQ(scale(1), 224);
  EXPECT_EQ(scale(2), 56);
  EXPECT_EQ(scale(3), 64);
  EXPECT_EQ(scale(4), 224);
  // Not finite: the newest counts once more.
  update({0, 1, std::nanf(""), inf, 1, 0}, 0);
  EXPECT_EQ(scale(1), 224);
  EXPECT_EQ(scale(2), 56);
  EXPECT_TRUE(at::equal(history.to(at::kCPU)[2], at::tensor({8.0f, 8.0f, 4.0f})));
  EXPECT_TRUE(at::equal(history.to(at::kCPU)[3], at::tensor({7.0f, 7.0f, 0.0f})));
  update({0, 1, 1, 1, 1, 0}, 2);
  EXPECT_EQ(scale(1), 112) << "448 / 4 / 1, after the 2 fell out";
  EXPECT_EQ(scale(2), 14);
  EXPECT_EQ(scale(0), 1);
}

inline void check_linear(const Fp8Shape& shape, at::ScalarType dtype, at::Device device, double part) {
  const Fp8Operands o = fp8_operands(shape, shape.width, device);
  const at::Tensor slots_before = at::stack({o.x_slot, o.weight_slot});
  const at::Tensor got = linear_fp8(o.x, o.weight, o.x_slot, o.weight_slot, dtype);
  expect_close_rows(got, exact_product(o).to(dtype), part, "linear_fp8 " + name_of(dtype, shape));
  expect_same_bits(at::stack({o.x_slot, o.weight_slot}), slots_before, "operands' slots are only read");
}

}  // namespace hrm::ops::testing
