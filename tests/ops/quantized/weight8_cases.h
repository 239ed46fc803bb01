#pragma once
// Checks of 8-bit weights with a scale for each row that hold on every device.

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "hrm/ops/weight8.h"
#include "ops/op_testing.h"

namespace hrm::ops::testing {

inline constexpr at::ScalarType kWeight8Formats[] = {at::kFloat8_e4m3fn, at::kChar};

// What a byte stands for, from the definition of the format.
inline double weight8_number(uint8_t byte, at::ScalarType format) {
  if (format == at::kChar) return static_cast<int8_t>(byte);
  const int exponent = (byte >> 3) & 15, mantissa = byte & 7;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return byte & 0x80 ? -magnitude : magnitude;
}

// By looking at every number of the format; of two that are equally far the even one.
inline uint8_t nearest_byte(float x, at::ScalarType format) {
  uint8_t best = 0;
  double least = std::numeric_limits<double>::infinity();
  for (int byte = 0; byte < 256; ++byte) {
    if (format == at::kFloat8_e4m3fn && (byte & 0x7f) == 0x7f) continue;  // NaN
    if (format == at::kChar && byte == 0x80) continue;                    // -128 is not used
    const double distance = std::abs(weight8_number(static_cast<uint8_t>(byte), format) - x);
    if (distance > least || (distance == least && byte % 2 == 1)) continue;
    if (distance == least && best % 2 == 0) continue;
    best = static_cast<uint8_t>(byte);
    least = distance;
  }
  return best;
}

inline at::Tensor weight8_bytes_of(const at::Tensor& values) {
  return values.view(at::kByte).to(at::kCPU);
}

// Each value and each scale, from the definition.
inline void expect_good_weight8(at::Device device) {
  const std::vector<std::vector<int64_t>> shapes{{1, 1}, {3, 7}, {5, 16}, {33, 40}, {2, 1025}, {70, 64}};
  for (const at::ScalarType format : kWeight8Formats) {
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      for (const std::vector<int64_t>& sizes : shapes) {
        const std::string what = cat(format, " of ", dtype, " ", at::IntArrayRef(sizes));
        at::Tensor weight = normal(sizes, 3, dtype, device);
        if (sizes[0] > 4) weight[2].zero_();
        const Weight8 q = quantize_weight8(weight, format);
        ASSERT_EQ(q.values.scalar_type(), format) << what;
        ASSERT_EQ(q.values.sizes(), weight.sizes()) << what;
        ASSERT_EQ(q.bytes(), weight8_bytes(sizes[0], sizes[1])) << what;
        const at::Tensor floats = weight.to(at::kCPU, at::kFloat).contiguous();
        const at::Tensor got = weight8_bytes_of(q.values), scales = q.scales.to(at::kCPU);
        for (int64_t row = 0; row < sizes[0]; ++row) {
          const float largest = floats[row].abs().max().item<float>();
          const float limit = format == at::kChar ? 127.0f : 448.0f;
          const float scale = std::max(largest / limit, std::numeric_limits<float>::min());
          ASSERT_EQ(scales[row].item<float>(), scale) << what << " row " << row;
          const float* w = floats.const_data_ptr<float>() + row * sizes[1];
          const uint8_t* bytes = got.const_data_ptr<uint8_t>() + row * sizes[1];
          for (int64_t i = 0; i < sizes[1]; ++i) {
            const double want = weight8_number(nearest_byte(w[i] / scale, format), format);
            ASSERT_EQ(weight8_number(bytes[i], format), want) << what << " row " << row << " element " << i;
          }
        }
        for (const auto to : {at::kFloat, at::kBFloat16, at::kHalf}) {
          const at::Tensor want = q.values.to(at::kCPU).to(at::kFloat) * scales.unsqueeze(1);
          expect_same_bits(dequantize_weight8(q, to).to(at::kCPU), want.to(to), cat(what, " to ", to));
        }
      }
    }
  }
}

// Wherever `out` begins in memory, and what is beside it stays.
inline void expect_weight8_writes_nothing_else(at::Device device) {
  for (const at::ScalarType format : kWeight8Formats) {
    for (const int64_t inner : {16, 48, 33}) {
      const at::Tensor weight = normal({7, inner}, 4, at::kBFloat16, device);
      const Weight8 q = quantize_weight8(weight, format);
      const at::Tensor want = dequantize_weight8(q, at::kBFloat16);
      for (const int64_t from : {0, 1, 8}) {
        const int64_t n = 7 * inner;
        const at::Tensor all = at::full({n + 32}, 7, weight.options());
        dequantize_weight8_(all.narrow(0, from, n).view({7, inner}), q);
        expect_same_bits(all.narrow(0, from, n).view({7, inner}), want, cat(format, " ", inner, " from ", from));
        EXPECT_TRUE(all.narrow(0, 0, from).eq(7).all().item<bool>());
        EXPECT_TRUE(all.narrow(0, from + n, 32 - from).eq(7).all().item<bool>());
      }
    }
  }
}

// The product and its gradients beside float64 products with scale * value, for sizes on both sides of what the kernel
// takes: rows of a tile and beyond 32, summands of a part, a warp and a block, narrow and wide results, odd ones.
inline void expect_good_linear_weight8(at::Device device, const std::vector<std::vector<int64_t>>& sizes) {
  for (const at::ScalarType format : kWeight8Formats) {
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      for (const std::vector<int64_t>& s : sizes) {
        const int64_t rows = s[0], in = s[1], out = s[2];
        const std::string what = cat(format, " ", dtype, " ", at::IntArrayRef(s));
        const at::Tensor weight = normal({out, in}, 1, at::kFloat, device) / std::sqrt(static_cast<double>(in));
        const Weight8 q = quantize_weight8(weight, format);
        ASSERT_TRUE(at::isfinite(q.scales).all().item<bool>()) << what;  // and the device is waited for
        const at::Tensor wide = q.values.to(at::kFloat).to(at::kDouble) * q.scales.to(at::kDouble).unsqueeze(1);
        const at::Tensor narrow = dequantize_weight8(q, dtype);
        for (const bool adds : {false, true}) {
          const auto leaf = [&](at::IntArrayRef shape, uint64_t seed) {
            return normal(shape, seed, dtype, device).requires_grad_();
          };
          const at::Tensor x = leaf({rows, in}, 2), residual = leaf({rows, out}, 3),
                           grad = normal({rows, out}, 4, dtype, device);
          const std::optional<at::Tensor> added = adds ? std::optional(residual) : std::nullopt;
          const at::Tensor workspace = at::full({out, in}, 5, at::device(device).dtype(dtype));
          const at::Tensor y = linear_weight8(x, q, added, workspace);
          at::Tensor exact = at::matmul(x.detach().to(at::kDouble), wide.t());
          if (adds) exact += residual.detach().to(at::kDouble);
          at::Tensor plain = at::linear(x.detach(), narrow);
          if (adds) plain = plain + residual.detach();
          expect_as_good(y.detach(), plain, exact, what + (adds ? ", added" : ""), 8);
          workspace.fill_(-3);  // another layer's
          y.backward(grad);
          expect_as_good(x.grad(), at::matmul(grad, narrow), at::matmul(grad.to(at::kDouble), wide), what + ", grad",
                         8);
          if (adds) expect_same_bits(residual.grad(), grad, what);
          const at::NoGradGuard no_grad;
          expect_same_bits(linear_weight8(x, q, added), y.detach(), what + ", without a workspace or a gradient");
        }
      }
    }
  }
}

}  // namespace hrm::ops::testing
