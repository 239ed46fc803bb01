#include "ops/quantized/weight8_cases.h"

#include <algorithm>

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

TEST(Weight8, IsTheDefinition) {
  expect_good_weight8(at::kCPU);
}

TEST(Weight8, WritesNothingElse) {
  expect_weight8_writes_nothing_else(at::kCPU);
}

TEST(Weight8, ProductsAndGradients) {
  expect_good_linear_weight8(at::kCPU, {{1, 16, 8}, {5, 33, 7}, {3, 64, 40}, {40, 48, 16}, {0, 16, 8}});
}

TEST(Weight8, HandMadeValues) {
  const at::Tensor weight =
      at::tensor(std::vector<float>{448, -1.0625f, 1.1875f, 0.001f, 127, 0.5f, 1.5f, -2.5f}).view({2, 4});
  const Weight8 e4m3 = quantize_weight8(weight, at::kFloat8_e4m3fn);
  EXPECT_EQ(e4m3.scales[0].item<float>(), 1);
  // 1.0625 and 1.1875 are halfway between numbers with three bits of mantissa; 0.001 is 0.512 of the smallest one.
  expect_same_bits(e4m3.values[0].to(at::kFloat), at::tensor(std::vector<float>{448, -1, 1.25f, 0x1p-9f}));
  const Weight8 int8 = quantize_weight8(weight, at::kChar);
  EXPECT_EQ(int8.scales[1].item<float>(), 1);
  expect_same_bits(int8.values[1].to(at::kFloat), at::tensor(std::vector<float>{127, 0, 2, -2}));
}

// Half of the widest gap between neighbours: 16 of 448 for e4m3 at the top, half a unit of 127.
TEST(Weight8, IsWithinTheFormatsError) {
  const at::Tensor weight = normal({64, 640}, 8, at::kFloat);
  const at::Tensor largest = weight.abs().amax(1, true);
  const auto error = [&](at::ScalarType format) {
    return (dequantize_weight8(quantize_weight8(weight, format), at::kFloat) - weight).abs();
  };
  EXPECT_LE((error(at::kFloat8_e4m3fn) / weight.abs().clamp_min(largest / 448 * 0x1p-6)).max().item<float>(),
            0x1p-4f * 1.0001f);
  EXPECT_LE((error(at::kChar) / largest).max().item<float>(), 0.5001f / 127);
}

TEST(Weight8, RowsThatAreNotFiniteShowInTheirScale) {
  for (const at::ScalarType format : kWeight8Formats) {
    at::Tensor weight = normal({4, 20}, 8, at::kFloat);
    weight[1][3] = std::numeric_limits<float>::infinity();
    weight[3][0] = std::numeric_limits<float>::quiet_NaN();
    const at::Tensor finite = at::isfinite(quantize_weight8(weight, format).scales);
    EXPECT_TRUE(at::equal(finite, at::tensor({1, 0, 1, 0}, at::kInt).to(at::kBool))) << format << finite;
  }
}

TEST(Weight8, TakesWhatIsNotContiguousAndManyPieces) {
  for (const at::ScalarType format : kWeight8Formats) {
    const at::Tensor weight = normal({700, 1100}, 2, at::kFloat);
    const Weight8 a = quantize_weight8(weight.t(), format), b = quantize_weight8(weight.t().contiguous(), format);
    expect_same_bits(weight8_bytes_of(a.values), weight8_bytes_of(b.values));
    expect_same_bits(a.scales, b.scales);
    expect_same_bits(dequantize_weight8(a, at::kFloat), b.values.to(at::kFloat) * b.scales.unsqueeze(1));
    const at::Tensor x = normal({700, 5}, 3, at::kFloat);
    expect_same_bits(linear_weight8(x.t(), b), linear_weight8(x.t().contiguous(), b));
  }
}

// The kernel of weight8_linear.cu: each summand must be met once, by lanes that have the same ones of both factors.
TEST(Weight8, ThreadsOfTheKernelMeetEachSummandOnce) {
  constexpr int kWarps = 8, kLoad = 16, kStep = kWarps * 4 * kLoad, kUnroll = 4;
  for (const int inner : {16, 48, 64, 512, 528, 1024, 2048, 2064, 4096, 12288}) {
    std::vector<int> met(static_cast<size_t>(inner), 0);
    for (int warp = 0; warp < kWarps; ++warp) {
      for (int part = 0; part < 4; ++part) {
        const int begin = (warp * 4 + part) * kLoad;
        int left = inner - begin, at = begin;
        for (int first = warp * 4 * kLoad; first < inner; first += kStep * kUnroll) {
          for (int u = 0; u < kUnroll; ++u) {
            if (first + kStep * u >= inner) break;
            if (left <= kStep * u) continue;
            ASSERT_LE(at + kStep * u + kLoad, inner) << "a load beyond the row's end";
            for (int i = 0; i < kLoad; ++i) ++met[static_cast<size_t>(at + kStep * u + i)];
          }
          left -= kStep * kUnroll;
          at += kStep * kUnroll;
        }
      }
    }
    EXPECT_TRUE(std::all_of(met.begin(), met.end(), [](int times) { return times == 1; })) << inner;
  }
}

// The same bitwise steps as in weight8_widen.cuh, on the bits of one half.
TEST(Weight8, BytesWidenExactly) {
  const auto float_of = [](uint32_t bits, at::ScalarType dtype) {
    const at::Tensor half = at::empty({1}, at::kShort).fill_(static_cast<int16_t>(bits));
    return half.view(dtype).to(at::kDouble).item<double>();
  };
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const double integer = weight8_number(static_cast<uint8_t>(byte), at::kChar);
    EXPECT_EQ(float_of((byte ^ 0x80u) | 0x6400u, at::kHalf) - float_of(0x6480u, at::kHalf), integer);
    EXPECT_EQ(float_of((byte & 0x7fu) | 0x4300u, at::kBFloat16) - float_of((byte & 0x80u) | 0x4300u, at::kBFloat16),
              integer);
    if ((byte & 0x7fu) == 0x7fu) continue;
    const double number = weight8_number(static_cast<uint8_t>(byte), at::kFloat8_e4m3fn);
    const uint32_t upper = byte << 8;
    const auto moved = [&](int shift) { return ((upper & 0x7f00u) >> shift) | (upper & 0x8000u); };
    EXPECT_EQ(float_of(moved(1), at::kHalf) * float_of(0x5c00u, at::kHalf), number);
    EXPECT_EQ(float_of(moved(4), at::kBFloat16) * float_of(0x7b80u, at::kBFloat16), number);
  }
}

TEST(Weight8, NamesWhatDoesNotFit) {
  const at::Tensor weight = at::ones({6, 16});
  const auto quantize = [](const at::Tensor& w, at::ScalarType format) {
    return error_of([&] { quantize_weight8(w, format); });
  };
  expect_message(quantize(at::ones({4, 4}, at::kInt), at::kChar), {"hrm::quantize_weight8", "Int", "[4, 4]"});
  expect_message(quantize(at::ones({4}), at::kChar), {"a matrix", "[4]"});
  expect_message(quantize(at::ones({0, 4}), at::kChar), {"not empty", "[0, 4]"});
  expect_message(quantize(weight, at::kFloat8_e5m2), {"format must be Float8_e4m3fn or Char", "Float8_e5m2"});
  const Weight8 q = quantize_weight8(weight, at::kChar);
  const auto dequantize = [&](const at::Tensor& out, const Weight8& from) {
    return error_of([&] { dequantize_weight8_(out, from); });
  };
  expect_message(dequantize(at::ones({6, 15}), q), {"hrm::dequantize_weight8_", "[6, 16]", "[6, 15]"});
  expect_message(dequantize(at::ones({16, 6}).t(), q), {"not contiguous"});
  expect_message(dequantize(at::ones({6, 16}, at::kInt), q), {"out must be", "Int"});
  Weight8 wrong = q;
  wrong.scales = at::ones({5});
  expect_message(dequantize(weight.clone(), wrong), {"6 contiguous float32", "[5]"});
  wrong = q;
  wrong.values = at::ones({6, 16});
  expect_message(dequantize(weight.clone(), wrong), {"Float8_e4m3fn or Char", "[6, 16]"});
  const auto linear = [&](const at::Tensor& x, const std::optional<at::Tensor>& residual,
                          const std::optional<at::Tensor>& workspace) {
    return error_of([&] { linear_weight8(x, q, residual, workspace); });
  };
  expect_message(linear(at::ones({2, 15}), {}, {}), {"hrm::linear_weight8", "[2, 15]", "[6, 16]"});
  expect_message(linear(at::ones({2, 16}), at::ones({2, 5}), {}), {"residual must be (..., out)", "[2, 5]"});
  expect_message(linear(at::ones({2, 16}), {}, at::ones({6, 16}, at::kHalf)), {"workspace must be contiguous"});
  const at::Tensor x = at::ones({2, 16}).requires_grad_();
  const at::Tensor grad = torch::autograd::grad({linear_weight8(x, q).sum()}, {x}, {}, true)[0];
  EXPECT_EQ(grad.sizes(), x.sizes());
  expect_message(error_of([&] { torch::autograd::grad({linear_weight8(x, q).sum()}, {x}, {}, true, true); }),
                 {"no second derivative"});
}

}  // namespace
}  // namespace hrm::ops
