#pragma once
// Checks of fp8_linear that hold on every device.

#include <string>
#include <tuple>
#include <vector>

#include "hrm/ops/fp8.h"
#include "hrm/ops/fp8_linear.h"
#include "ops/op_testing.h"

namespace hrm::ops::testing {

inline at::Tensor wide_slot(double scale, bool e5m2, at::Device device) {
  const at::Tensor slot = make_fp8_wide_slots(1, e5m2, device).select(0, 0);
  slot.select(0, 0).fill_(scale);
  slot.select(0, 1).fill_(1 / scale);
  slot.select(0, 4).fill_(1 / scale);
  return slot;
}

// What a slot has counted.
inline void expect_counts(const at::Tensor& slot, int64_t rows, int64_t clamped, const std::string& what) {
  const Fp8Counts counts = fp8_counts(slot.unsqueeze(0));
  EXPECT_EQ(counts.rows.item<int64_t>(), rows) << what << ": rows";
  EXPECT_EQ(counts.clamped.item<int64_t>(), clamped) << what << ": clamped values";
}

// The values, their transpose, the maximum and the counts, of any sizes; also each of the two alone.
inline void check_pair(int64_t rows, int64_t columns, at::ScalarType dtype, bool e5m2, at::Device device) {
  const std::string what = cat(dtype, e5m2 ? " e5m2 " : " e4m3 ", rows, " x ", columns, " on ", device);
  const at::Tensor x = normal({rows, columns}, 3, dtype, device) * 40;
  const double scale = 4, largest = e5m2 ? kFp8MaxE5m2 : kFp8Max;
  const at::Tensor slot = wide_slot(scale, e5m2, device);
  const auto [values, transposed] = quantize_fp8_pair(x, slot, e5m2);
  const at::ScalarType format = e5m2 ? at::kFloat8_e5m2 : at::kFloat8_e4m3fn;
  const at::Tensor want = x.to(at::kCPU, at::kFloat).mul(scale).clamp(-largest, largest).to(format);
  const auto bytes = [](const at::Tensor& t) { return t.to(at::kCPU).contiguous().view(at::kByte); };
  expect_same_bits(bytes(values), want.view(at::kByte), what + ": values");
  expect_same_bits(bytes(transposed), want.t().contiguous().view(at::kByte), what + ": transposed");
  EXPECT_EQ(slot[2].item<float>(), x.numel() == 0 ? 0 : x.abs().max().to(at::kFloat).item<float>()) << what;
  const auto clamped = [&](double by) {
    const at::Tensor scaled = x.to(at::kCPU, at::kFloat).mul(by).abs();
    return scaled.gt(static_cast<float>(largest) * 1.00001F).sum().item<int64_t>();
  };
  const int64_t counted = x.numel() == 0 ? 0 : rows;
  expect_counts(slot, counted, clamped(scale), what);
  const double fine = 16 * largest / kFp8Max;
  const at::Tensor often = wide_slot(fine, e5m2, device);
  quantize_fp8_pair(x, often, e5m2, false, true);
  EXPECT_TRUE(x.numel() == 0 || clamped(fine) > x.numel() / 4) << what << ": too few to test";
  expect_counts(often, counted, clamped(fine), what + ", a fine scale");
  // A scale that comes from the maximum clamps nothing, however it is rounded.
  if (counted > 0) {
    for (const double factor : {1.0, 1.1, 1.3, 1.7}) {
      const at::Tensor scaled = (x * factor).to(dtype), now = fp8_scale_now(scaled, often, 0);
      quantize_fp8_pair(scaled, now, e5m2);
      expect_counts(now, counted, 0, what + ", its own scale");
    }
  }
  const at::Tensor one = wide_slot(scale, e5m2, device);
  const auto alone = quantize_fp8_pair(x, one, e5m2, true, false);
  EXPECT_FALSE(std::get<1>(alone).defined());
  expect_same_bits(bytes(std::get<0>(alone)), bytes(values), what + ": values alone");
  const auto across = quantize_fp8_pair(x, one, e5m2, false, true);
  EXPECT_FALSE(std::get<0>(across).defined());
  expect_same_bits(bytes(std::get<1>(across)), bytes(transposed), what + ": transposed alone");
  EXPECT_EQ(one[2].item<float>(), slot[2].item<float>()) << what;
}

// Not-a-number and infinity: the maximum says so, and the other values are as ever.
inline void check_pair_not_finite(at::Device device) {
  for (const bool e5m2 : {false, true}) {
    at::Tensor x = normal({32, 48}, 3, at::kBFloat16, device);
    const at::Tensor plain = std::get<0>(quantize_fp8_pair(x, wide_slot(2, e5m2, device), e5m2)).to(at::kFloat);
    x[3][5].fill_(NAN);
    x[4][6].fill_(INFINITY);
    const at::Tensor slot = wide_slot(2, e5m2, device);
    const at::Tensor values = std::get<0>(quantize_fp8_pair(x, slot, e5m2)).to(at::kFloat);
    EXPECT_TRUE(std::isnan(slot[2].item<float>()));
    EXPECT_TRUE(std::isnan(values[3][5].item<float>()));
    EXPECT_EQ(values[4][6].item<float>(), e5m2 ? kFp8MaxE5m2 : kFp8Max);
    EXPECT_EQ(values.ne(plain).sum().item<int64_t>(), 2);
    expect_counts(slot, 32, 1, "infinity is clamped, not-a-number is not");
    quantize_fp8_pair(x, slot, e5m2);
    expect_counts(slot, 64, 2, "twice");
  }
}

// Wide slots follow the largest value of their format.
inline void check_wide_update(at::Device device) {
  const at::Tensor slots = at::cat({make_fp8_wide_slots(2, false, device), make_fp8_wide_slots(1, true, device)});
  const at::Tensor history = at::zeros({3, 4}, slots.options());
  slots.select(1, 2).copy_(at::tensor({2.0F, 0.0F, 7.0F}));
  fp8_counts(slots).rows.fill_(3);
  fp8_counts(slots).clamped.fill_(int64_t{5} << 32 | 7);
  fp8_update_scales_(slots, history, 1);
  const at::Tensor got = slots.to(at::kCPU);
  const float want[] = {224 / 2.0F, 1, 28672 / 7.0F};
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(got[i][0].item<float>(), want[i]) << i;
    EXPECT_FLOAT_EQ(got[i][1].item<float>(), 1 / want[i]) << i;
    EXPECT_EQ(got[i][4].item<float>(), got[i][1].item<float>()) << i;
    EXPECT_EQ(got[i][2].item<float>(), 0) << i;
    EXPECT_EQ(got[i][3].item<double>(), i == 2 ? kFp8MaxE5m2 : kFp8Max) << i;
    expect_counts(slots[i], 0, 0, "cleared");
  }
}

// The maximum alone, and the scale of it: of values, of zeros, and of what is not finite.
inline void check_scale_now(int64_t rows, int64_t columns, at::ScalarType dtype, bool e5m2, at::Device device) {
  const std::string what = cat(dtype, e5m2 ? " e5m2 " : " e4m3 ", rows, " x ", columns, " on ", device);
  const at::Tensor x = normal({rows, columns}, 3, dtype, device) * 40;
  const float amax = x.numel() == 0 ? 0 : x.abs().max().to(at::kFloat).item<float>();
  const auto largest = static_cast<float>(e5m2 ? kFp8MaxE5m2 : kFp8Max);
  const at::Tensor slot = wide_slot(4, e5m2, device);
  fp8_raise_amax_(x, slot);
  EXPECT_EQ(slot[2].item<float>(), amax) << what;
  fp8_raise_amax_(x / 2, slot);
  EXPECT_EQ(slot[2].item<float>(), amax) << what << ": a smaller tensor";

  const at::Tensor other = wide_slot(4, e5m2, device);
  const auto expect_now = [&](const at::Tensor& values, float scale, const char* kind) {
    const at::Tensor now = fp8_scale_now(values, other, 1).to(at::kCPU);
    EXPECT_EQ(now.sizes(), at::IntArrayRef{kFp8WideSlot});
    EXPECT_FLOAT_EQ(now[0].item<float>(), scale) << what << ", " << kind;
    for (const int i : {1, 4}) EXPECT_FLOAT_EQ(now[i].item<float>(), 1 / scale) << what << ", " << kind;
    EXPECT_EQ(now[2].item<float>(), 0) << what << ", " << kind;
    EXPECT_EQ(now[3].item<float>(), largest) << what << ", " << kind;
    EXPECT_EQ(other[0].item<float>(), 4) << what << ", " << kind << ": the slot keeps its scale";
  };
  expect_now(x, amax > 0 ? largest / 2 / amax : 4, "values");
  EXPECT_EQ(other[2].item<float>(), amax) << what;
  expect_now(at::zeros_like(x), 4, "zeros");
  EXPECT_EQ(other[2].item<float>(), amax) << what;
  if (x.numel() == 0) return;
  at::Tensor broken = x.clone();
  broken[rows - 1][columns - 1].fill_(NAN);
  expect_now(broken, 4, "not-a-number");
  EXPECT_TRUE(std::isnan(other[2].item<float>())) << what;
}

// Weights of several sizes, among them one of zeros, each by its own scale.
inline void check_weights(const std::vector<std::vector<int64_t>>& sizes, at::ScalarType dtype, at::Device device) {
  std::vector<at::Tensor> weights, masters, values, transposed;
  for (size_t i = 0; i < sizes.size(); ++i) {
    masters.push_back(normal(sizes[i], i + 1, at::kFloat, device) * (i == 1 ? 0.0 : 0.1 * static_cast<double>(i + 1)));
    weights.push_back(masters[i].to(dtype));
    values.push_back(at::empty(sizes[i], weights[i].options().dtype(at::kFloat8_e4m3fn)));
    const auto across = i % 3 == 0 ? std::vector<int64_t>{0} : std::vector<int64_t>{sizes[i][1], sizes[i][0]};
    transposed.push_back(at::empty(across, values[i].options()));
  }
  const at::Tensor slots = make_fp8_wide_slots(static_cast<int64_t>(sizes.size()), false, device);
  for (int round = 0; round < 2; ++round) {
    // Once from the weights, and once from masters that are rounded to them.
    quantize_fp8_weights_(round == 0 ? weights : masters, values, transposed, slots, dtype);
    for (size_t i = 0; i < sizes.size(); ++i) {
      const std::string what = cat(dtype, " weight ", i, ", ", weights[i].sizes(), ", round ", round);
      const float amax = weights[i].abs().max().to(at::kFloat).item<float>();
      const at::Tensor slot = slots[static_cast<int64_t>(i)];
      EXPECT_FLOAT_EQ(slot[0].item<float>(), amax > 0 ? static_cast<float>(kFp8Max) / amax : 1) << what;
      EXPECT_EQ(slot[2].item<float>(), amax) << what;
      expect_counts(slot, 0, 0, what);
      const at::Tensor fresh = slot.clone();
      const auto [want, across] = quantize_fp8_pair(weights[i], fresh, false);
      expect_same_bits(values[i].view(at::kByte), want.view(at::kByte), what);
      if (i % 3 == 0) continue;
      expect_same_bits(transposed[i].view(at::kByte), across.view(at::kByte), what + ", transposed");
    }
  }
}

struct Fp8LinearCase {
  at::Tensor x, grad_y, master;  // x and grad_y of the compute dtype, master float32
  Fp8Weight weight;
  at::Tensor x_slot, grad_slot;
  bool e5m2 = true;
};

inline Fp8LinearCase make_fp8_linear(int64_t rows, int64_t in, int64_t out, at::ScalarType dtype, bool e5m2,
                                     at::Device device) {
  Fp8LinearCase c;
  c.x = normal({rows, in}, 1, dtype, device);
  c.grad_y = normal({rows, out}, 2, dtype, device) / 100;
  c.master = normal({out, in}, 3, at::kFloat, device) / std::sqrt(static_cast<double>(in));
  c.weight.slot = wide_slot(64, false, device);
  std::tie(c.weight.values, c.weight.transposed) = quantize_fp8_pair(c.master, c.weight.slot, false);
  c.x_slot = wide_slot(64, false, device);
  c.grad_slot = wide_slot(e5m2 ? 4096 : 4096.0 * 2, e5m2, device);
  c.e5m2 = e5m2;
  return c;
}

struct Fp8LinearResult {
  at::Tensor y, grad_x, grad_weight;
};

// Ours; the weight's gradient is added to a buffer that holds 0.5.
inline Fp8LinearResult run_fp8_linear(const Fp8LinearCase& c, std::optional<double> margin = std::nullopt,
                                      bool x_is_kept = false) {
  const at::Tensor x = c.x.detach().clone().requires_grad_(), master = c.master.detach().clone().requires_grad_();
  const at::Tensor grad = at::full_like(c.master, 0.5);
  const at::Tensor y = fp8_linear(x, c.weight, c.x_slot, c.grad_slot, c.e5m2, master, grad, margin, {}, x_is_kept);
  return {y.detach(), torch::autograd::grad({y}, {x}, {c.grad_y})[0], grad};
}

// Whether x and the weight's transpose are kept in 8 bits or made again: the same bits, and the same maxima.
inline void check_x_is_kept(int64_t rows, int64_t in, int64_t out, at::ScalarType dtype, at::Device device) {
  for (const std::optional<double> margin : {std::optional<double>(), std::optional(1.0)}) {
    const std::string what = cat(dtype, margin ? " current" : " delayed");
    const Fp8LinearCase a = make_fp8_linear(rows, in, out, dtype, true, device),
                        kept = make_fp8_linear(rows, in, out, dtype, true, device);
    Fp8LinearCase b = kept;
    b.weight.transposed.reset();  // and the weight is transposed where it is read
    const Fp8LinearResult want = run_fp8_linear(a, margin), got = run_fp8_linear(b, margin, /*x_is_kept=*/true);
    expect_same_bits(got.y, want.y, what + " y");
    expect_same_bits(got.grad_x, want.grad_x, what + " gradient of x");
    expect_same_bits(got.grad_weight, want.grad_weight, what + " gradient of weight");
    expect_same_bits(b.x_slot.narrow(0, 0, 5), a.x_slot.narrow(0, 0, 5), what + " slot");
    const Fp8Counts once = fp8_counts(a.x_slot.unsqueeze(0)), twice = fp8_counts(b.x_slot.unsqueeze(0));
    EXPECT_EQ(once.rows.item<int64_t>(), margin ? 0 : rows) << what;
    EXPECT_TRUE(at::equal(twice.rows, 2 * once.rows)) << what;
    EXPECT_TRUE(at::equal(twice.clamped, 2 * once.clamped)) << what << ": the share is the same";
  }
}

// The three products of the values that the 8-bit copies stand for, in float64.
inline Fp8LinearResult exact_fp8_linear(const Fp8LinearCase& c) {
  const auto stands_for = [](const at::Tensor& x, const at::Tensor& slot, bool e5m2) {
    const at::Tensor fresh = slot.clone();
    const auto values = std::get<0>(quantize_fp8_pair(x.reshape({-1, x.size(-1)}), fresh, e5m2, true, false));
    return values.to(at::kDouble) * slot[1].item<double>();
  };
  const at::Tensor x = stands_for(c.x, c.x_slot, false), g = stands_for(c.grad_y, c.grad_slot, c.e5m2),
                   w = c.weight.values.to(at::kDouble) * c.weight.slot[1].item<double>();
  return {x.mm(w.t()), g.mm(w), g.t().mm(x) + 0.5};
}

// A sum of `terms` products, in tensor cores or (0 terms) outside: they add 32 products at a time to what has at least
// 13 bits, and what has 13 bits leaves them every 128 terms. And a rounding of the result.
// sizes: how large the sums are on the way, where that differs from one to the other; otherwise a few standard
// deviations of them, as of normal numbers.
inline void expect_product(const at::Tensor& ours, const at::Tensor& exact, int64_t terms, const std::string& what,
                           const at::Tensor& sizes = {}) {
  const at::Tensor flat = ours.reshape(exact.sizes()).to(at::kDouble);
  const at::Tensor size =
      sizes.defined() ? sizes : 4 * exact.sub(exact.mean()).std(/*unbiased=*/false).expand(exact.sizes());
  const double steps = terms == 0 ? 4 : static_cast<double>(terms + 31) / 32;
  const double lost = ours.is_cuda() ? 0x1p-13 * steps : 0x1p-20;
  const double subnormal = ours.scalar_type() == at::kHalf ? 0x1p-25 : 0;
  const at::Tensor bound = exact.abs() * (unit_roundoff(ours.scalar_type()) + lost) + lost * size + subnormal;
  EXPECT_TRUE((flat - exact).abs().le(bound).all().item<bool>())
      << what << ": " << describe_differences(flat.to(at::kFloat), exact.to(at::kFloat));
}

inline void check_fp8_linear(int64_t rows, int64_t in, int64_t out, at::ScalarType dtype, bool e5m2,
                             at::Device device) {
  const std::string what = cat(dtype, e5m2 ? " e5m2 " : " e4m3 ", rows, " x ", in, " -> ", out);
  const Fp8LinearCase c = make_fp8_linear(rows, in, out, dtype, e5m2, device);
  const Fp8LinearResult ours = run_fp8_linear(c), exact = exact_fp8_linear(c);
  const auto fast = [](int64_t terms) { return terms > 2048 ? 0 : terms; };
  expect_product(ours.y, exact.y, fast(in), what + ", y");
  expect_product(ours.grad_x, exact.grad_x, fast(out), what + ", gradient of x");
  expect_product(ours.grad_weight, exact.grad_weight, 0, what + ", gradient of weight");
  // Against the layer without quantisation: what 8 bits lose.
  const at::Tensor y = c.x.to(at::kDouble).mm(c.master.to(at::kDouble).t());
  const double error = (ours.y.to(at::kDouble) - y).norm().item<double>() / y.norm().item<double>();
  EXPECT_LE(error, 0.06) << what;
  EXPECT_GT(error, 0.001) << what << ": nothing was rounded";
}

// Current scaling is that of slots which hold the scales of these very tensors.
inline void check_fp8_linear_now(int64_t rows, int64_t in, int64_t out, at::ScalarType dtype, bool e5m2,
                                 at::Device device) {
  const std::string what = cat(dtype, e5m2 ? " e5m2 " : " e4m3 ", rows, " x ", in, " -> ", out, ", current");
  Fp8LinearCase c = make_fp8_linear(rows, in, out, dtype, e5m2, device);
  const Fp8LinearResult now = run_fp8_linear(c, 0);
  EXPECT_EQ(c.x_slot[2].item<float>(), c.x.abs().max().to(at::kFloat).item<float>()) << what;
  EXPECT_EQ(c.grad_slot[2].item<float>(), c.grad_y.abs().max().to(at::kFloat).item<float>()) << what;
  c.x_slot = fp8_scale_now(c.x, c.x_slot, 0);
  c.grad_slot = fp8_scale_now(c.grad_y, c.grad_slot, 0);
  const Fp8LinearResult want = run_fp8_linear(c);
  expect_same_bits(now.y, want.y, what + ", y");
  expect_same_bits(now.grad_x, want.grad_x, what + ", gradient of x");
  expect_same_bits(now.grad_weight, want.grad_weight, what + ", gradient of weight");
}

}  // namespace hrm::ops::testing
