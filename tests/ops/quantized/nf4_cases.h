#pragma once
// Checks of NF4 that hold on every device.

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "hrm/ops/nf4.h"
#include "ops/op_testing.h"

namespace hrm::ops::testing {

// As the paper prints them.
inline const std::array<float, 16>& nf4_table() {
  static const std::array<float, 16> table{-1.0f,
                                           -0.6961928009986877f,
                                           -0.5250730514526367f,
                                           -0.39491748809814453f,
                                           -0.28444138169288635f,
                                           -0.18477343022823334f,
                                           -0.09105003625154495f,
                                           0.0f,
                                           0.07958029955625534f,
                                           0.16093020141124725f,
                                           0.24611230194568634f,
                                           0.33791524171829224f,
                                           0.44070982933044434f,
                                           0.5626170039176941f,
                                           0.7229568362236023f,
                                           1.0f};
  return table;
}

// The dynamic map, by the rule: for each power of ten the middles of equal steps, all signs; zero and one.
inline std::vector<float> dynamic_map() {
  std::vector<double> all{0, 1};
  for (int e = 0; e < 7; ++e) {
    const int steps = 1 << e;
    for (int i = 0; i < steps; ++i) {
      const double from = 0.1 + 0.9 * i / steps, to = 0.1 + 0.9 * (i + 1) / steps;
      const double value = std::pow(10.0, e - 6) * (from + to) / 2;
      all.insert(all.end(), {value, -value});
    }
  }
  std::sort(all.begin(), all.end());
  return {all.begin(), all.end()};
}

// By looking at every level; the first of two that are equally far. Distances in float64.
template <class Levels>
int nearest(double x, const Levels& levels) {
  int best = 0;
  for (int i = 1; i < static_cast<int>(levels.size()); ++i) {
    if (std::abs(x - levels[static_cast<size_t>(i)]) < std::abs(x - levels[static_cast<size_t>(best)])) best = i;
  }
  return best;
}

// One number after the other, from the definition.
struct SlowNf4 {
  std::vector<int> codes;
  std::vector<float> absmax;  // as it is dequantised
  std::vector<int> absmax_codes;
  std::vector<float> scales;
  float offset = 0;

  SlowNf4(const at::Tensor& weight, bool twice) {
    const at::Tensor flat = weight.to(at::kCPU, at::kFloat).reshape({-1}).contiguous();
    const float* w = flat.const_data_ptr<float>();
    const auto n = static_cast<size_t>(flat.numel());
    double sum = 0;
    for (size_t first = 0; first < n; first += 64) {
      float largest = 0;
      for (size_t i = first; i < std::min(n, first + 64); ++i) largest = std::max(largest, std::abs(w[i]));
      for (size_t i = first; i < std::min(n, first + 64); ++i) {
        codes.push_back(nearest(largest == 0 ? 0.0f : w[i] / largest, nf4_table()));
      }
      absmax.push_back(largest);
      sum += largest;
    }
    if (!twice) return;
    const std::vector<float> map = dynamic_map();
    offset = static_cast<float>(sum / static_cast<double>(absmax.size()));
    for (size_t first = 0; first < absmax.size(); first += 256) {
      const size_t end = std::min(absmax.size(), first + 256);
      float largest = 0;
      for (size_t i = first; i < end; ++i) largest = std::max(largest, std::abs(absmax[i] - offset));
      scales.push_back(largest);
      for (size_t i = first; i < end; ++i) {
        absmax_codes.push_back(nearest(largest == 0 ? 0.0f : (absmax[i] - offset) / largest, map));
        const float product = map[static_cast<size_t>(absmax_codes[i])] * largest;
        absmax[i] = product + offset;
      }
    }
  }

  at::Tensor values(at::IntArrayRef sizes, at::ScalarType dtype) const {
    const at::Tensor out = at::empty({static_cast<int64_t>(codes.size())}, at::kFloat);
    for (size_t i = 0; i < codes.size(); ++i) {
      out.data_ptr<float>()[i] = nf4_table()[static_cast<size_t>(codes[i])] * absmax[i / 64];
    }
    return out.view(sizes).to(dtype);
  }
};

// Every element's code, in the order of the elements.
inline at::Tensor unpacked(const at::Tensor& codes, int64_t n) {
  const at::Tensor bytes = codes.to(at::kCPU, at::kLong);
  return at::stack({bytes.div(16, "floor"), bytes.remainder(16)}, 1).view({-1}).narrow(0, 0, n);
}

template <class T>
at::Tensor longs(const std::vector<T>& values) {
  return at::tensor(std::vector<int64_t>(values.begin(), values.end()), at::kLong);
}

// Whole and ragged blocks, bytes and groups of magnitudes; both sides of what the kernels decide by (8 elements).
inline void expect_good_nf4(at::Device device) {
  const std::vector<std::vector<int64_t>> shapes{{1},      {2},       {63},       {64},   {65},   {3, 7},    {8, 64},
                                                 {33, 40}, {257, 64}, {300, 128}, {8191}, {8200}, {64, 1025}};
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const std::vector<int64_t>& sizes : shapes) {
      for (const bool twice : {false, true}) {
        const std::string what = cat(dtype, " ", at::IntArrayRef(sizes), twice ? ", twice" : "");
        const at::Tensor weight = normal(sizes, 3, dtype, device);
        const int64_t n = weight.numel(), blocks = (n + 63) / 64;
        const SlowNf4 slow(weight, twice);
        const Nf4Tensor q = nf4_quantize(weight, twice);
        ASSERT_EQ(q.codes.numel(), (n + 1) / 2) << what;
        ASSERT_EQ(q.absmax.numel(), blocks) << what;
        expect_same_bits(unpacked(q.codes, n), longs(slow.codes), what + ", codes");
        if (twice) {
          EXPECT_EQ(q.offset.item<float>(), slow.offset) << what;
          expect_same_bits(q.absmax.to(at::kCPU, at::kLong), longs(slow.absmax_codes), what + ", absmax");
          expect_same_bits(q.scales.to(at::kCPU), at::tensor(slow.scales), what + ", scales");
        } else {
          expect_same_bits(q.absmax.to(at::kCPU), at::tensor(slow.absmax), what + ", absmax");
        }
        for (const auto to : {at::kFloat, at::kBFloat16, at::kHalf}) {
          expect_same_bits(nf4_dequantize(q, sizes, to).to(at::kCPU), slow.values(sizes, to), cat(what, " to ", to));
        }
      }
    }
  }
}

// Wherever `out` begins in memory, and what stands beside it stays.
inline void expect_nf4_writes_nothing_else(at::Device device) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t n : {64, 200, 8192, 16384 + 8, 333}) {
      const at::Tensor weight = normal({n}, 4, dtype, device);
      const Nf4Tensor q = nf4_quantize(weight);
      const at::Tensor want = nf4_dequantize(q, {n}, dtype);
      for (const int64_t from : {0, 1, 8}) {
        const at::Tensor all = at::full({n + 32}, 7, weight.options());
        nf4_dequantize_(all.narrow(0, from, n), q);
        expect_same_bits(all.narrow(0, from, n), want, cat(dtype, " ", n, " from ", from));
        EXPECT_TRUE(all.narrow(0, 0, from).eq(7).all().item<bool>());
        EXPECT_TRUE(all.narrow(0, from + n, 32 - from).eq(7).all().item<bool>());
      }
    }
  }
}

// The same with both backends, so that a GPU's kernels are compared with plain ATen on its own large tensors.
inline void expect_nf4_is_its_reference(at::IntArrayRef sizes, at::Device device) {
  const at::Tensor weight = normal(sizes, 5, at::kBFloat16, device);
  const auto run = [&](bool twice) {
    const Nf4Tensor q = nf4_quantize(weight, twice);
    return std::vector<at::Tensor>{q.codes, q.absmax, q.scales, q.offset,
                                   nf4_dequantize(q, weight.sizes(), at::kBFloat16)};
  };
  for (const bool twice : {false, true}) {
    const std::vector<at::Tensor> ours = run(twice);
    const WithReference reference;
    const std::vector<at::Tensor> plain = run(twice);
    for (size_t i = 0; i < ours.size(); ++i) {
      EXPECT_TRUE(at::equal(ours[i], plain[i])) << "part " << i << (twice ? ", twice" : "");
    }
  }
}

// Beside float64 products with the dequantised weight. sizes: rows, in, out.
inline void expect_good_linear_nf4(at::Device device, const std::vector<std::vector<int64_t>>& sizes) {
  const at::NoGradGuard no_grad;
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const std::vector<int64_t>& s : sizes) {
      for (const bool twice : {true, false}) {
        const int64_t rows = s[0], in = s[1], out = s[2];
        const std::string what = cat(dtype, " ", at::IntArrayRef(s), twice ? "" : ", float32 magnitudes");
        const at::Tensor weight = normal({out, in}, 1, at::kFloat, device) / std::sqrt(static_cast<double>(in));
        const Nf4Tensor q = nf4_quantize(weight, twice);
        const at::Tensor plain = nf4_dequantize(q, {out, in}, dtype), workspace = at::empty_like(plain);
        ASSERT_TRUE(at::isfinite(plain).all().item<bool>()) << what;  // and the device is waited for
        const at::Tensor x = normal({rows, in}, 2, dtype, device), residual = normal({rows, out}, 3, dtype, device);
        const at::Tensor exact = at::linear(x.to(at::kDouble), plain.to(at::kDouble));
        expect_as_good(linear_nf4(x, q, workspace), at::linear(x, plain), exact, what, 8);
        expect_as_good(linear_nf4(x, q, workspace, residual), at::linear(x, plain) + residual,
                       exact + residual.to(at::kDouble), what + ", added", 8);
      }
    }
  }
}

}  // namespace hrm::ops::testing
