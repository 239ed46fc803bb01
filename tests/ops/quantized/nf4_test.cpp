#include "ops/quantized/nf4_cases.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

TEST(Nf4, IsTheDefinition) {
  expect_good_nf4(at::kCPU);
}

TEST(Nf4, WritesNothingElse) {
  expect_nf4_writes_nothing_else(at::kCPU);
}

// Each level of a block of magnitude 2, and what lies halfway to the next one, worked out by hand.
TEST(Nf4, HandMadeValues) {
  std::vector<float> values;
  for (const float level : nf4_table()) values.push_back(2 * level);
  const at::Tensor weight = at::tensor(values);
  const Nf4Tensor q = nf4_quantize(weight, /*double_quantized=*/false);
  EXPECT_EQ(q.absmax.item<float>(), 2);
  const std::vector<int> bytes{0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef};
  expect_same_bits(q.codes.to(at::kLong), longs(bytes));
  expect_same_bits(nf4_dequantize(q, {16}, at::kFloat), weight, "levels come back as they were");
  // Between 0 and 0.0795803: halfway is 0.03979015, which goes down; a little more goes up.
  const at::Tensor near = at::tensor(std::vector<float>{1, 0.03979014977812767f, 0.0397902f, -0.04f, -0.05f});
  expect_same_bits(unpacked(nf4_quantize(near).codes, 5), longs(std::vector<int>{15, 7, 8, 7, 6}));
}

TEST(Nf4, BlocksOfZerosOfOneSignAndShortOnes) {
  const at::Tensor weight = at::zeros({200});
  weight.narrow(0, 64, 64).copy_(-at::linspace(0.5, 4, 64));
  weight.narrow(0, 192, 8).fill_(0.25);
  const Nf4Tensor q = nf4_quantize(weight, /*double_quantized=*/false);
  expect_same_bits(q.absmax, at::tensor(std::vector<float>{0, 4, 0, 0.25f}));
  const at::Tensor codes = unpacked(q.codes, 200);
  EXPECT_TRUE(codes.narrow(0, 0, 64).eq(7).all().item<bool>());
  EXPECT_EQ(codes[127].item<int64_t>(), 0) << "the largest magnitude of negative numbers is level -1";
  EXPECT_TRUE(codes.narrow(0, 64, 64).le(6).all().item<bool>());
  EXPECT_TRUE(codes.narrow(0, 192, 8).eq(15).all().item<bool>());
  for (const bool twice : {false, true}) {
    const at::Tensor back = nf4_dequantize(nf4_quantize(weight, twice), {200}, at::kFloat);
    EXPECT_EQ(back.narrow(0, 0, 64).abs().max().item<float>(), 0) << "zeros stay zeros, whatever their magnitude is";
    EXPECT_EQ(back.narrow(0, 128, 64).abs().max().item<float>(), 0);
  }
  const Nf4Tensor none = nf4_quantize(at::zeros({130}));
  EXPECT_EQ(none.offset.item<float>(), 0);
  EXPECT_EQ(nf4_dequantize(none, {130}, at::kFloat).abs().max().item<float>(), 0);
  // Blocks of one magnitude: their differences from the mean are zero, so that nothing is lost by the second rounding.
  const at::Tensor even = at::tensor(std::vector<float>(640, -1.5f));
  expect_same_bits(nf4_dequantize(nf4_quantize(even), {640}, at::kFloat), even);
}

// Half of the widest gap of the levels, 1 - 0.696; with double quantisation what a magnitude is off adds to it, half of
// the map's widest gap, 0.9 / 64, or the missing -1, of the largest difference from the mean.
TEST(Nf4, IsWithinTheFormatsError) {
  const at::Tensor weight = normal({128, 640}, 8, at::kFloat);
  const at::Tensor largest = weight.view({-1, 64}).abs().amax(1, true);
  const at::Tensor once = nf4_dequantize(nf4_quantize(weight, false), weight.sizes(), at::kFloat);
  const at::Tensor error = (once - weight).view({-1, 64}).abs();
  EXPECT_LE((error / largest).max().item<float>(), 0.1519037f);
  EXPECT_NEAR((once - weight).pow(2).mean().sqrt().item<float>(), 0.092, 0.008) << "of numbers of deviation 1";
  const at::Tensor twice = nf4_dequantize(nf4_quantize(weight), weight.sizes(), at::kFloat);
  const double spread = (largest - largest.mean()).abs().max().item<double>();
  EXPECT_LE((twice - once).abs().max().item<double>(), spread * 0.0070313 * 1.001);
  EXPECT_GT((twice - once).abs().max().item<double>(), 0);
  EXPECT_LT((twice - weight).pow(2).mean().item<double>(), 1.02 * (once - weight).pow(2).mean().item<double>());
}

TEST(Nf4, BytesOfAnElement) {
  const at::Tensor weight = normal({1024, 1024}, 1, at::kBFloat16);
  const double n = 1024 * 1024;
  EXPECT_NEAR(static_cast<double>(nf4_quantize(weight).bytes()) / n, 0.5 + 1 / 64.0 + 1 / 4096.0, 1e-5);
  EXPECT_DOUBLE_EQ(static_cast<double>(nf4_quantize(weight, false).bytes()) / n, 0.5625);
}

// More than the pieces that a CPU takes at a time, and a ragged end.
TEST(Nf4, ManyPiecesAreOne) {
  for (const bool twice : {false, true}) {
    const at::Tensor weight = normal({3, 262144 / 2 + 333}, 6, at::kBFloat16);
    const SlowNf4 slow(weight, twice);
    const Nf4Tensor q = nf4_quantize(weight, twice);
    expect_same_bits(unpacked(q.codes, weight.numel()), longs(slow.codes), "codes");
    expect_same_bits(nf4_dequantize(q, weight.sizes(), at::kBFloat16), slow.values(weight.sizes(), at::kBFloat16),
                     "values");
  }
}

// Pieces of whole blocks, and then the magnitudes of all of them.
TEST(Nf4, DoubleQuantisationHasTwoHalves) {
  const at::Tensor weight = normal({300, 64}, 7, at::kFloat);
  const Nf4Tensor whole = nf4_quantize(weight);
  const Nf4Tensor first = nf4_quantize(weight.narrow(0, 0, 131), false),
                  rest = nf4_quantize(weight.narrow(0, 131, 169), false);
  Nf4Tensor joined = first;
  joined.absmax = at::cat({first.absmax, rest.absmax});
  nf4_quantize_magnitudes(joined);
  expect_same_bits(at::cat({first.codes, rest.codes}), whole.codes);
  expect_same_bits(joined.absmax, whole.absmax);
  expect_same_bits(joined.scales, whole.scales);
  expect_same_bits(joined.offset, whole.offset);
  expect_message(error_of([&] { nf4_quantize_magnitudes(joined); }), {"nf4_quantize_magnitudes", "Byte", "[300]"});
}

TEST(Nf4, TakesWhatIsNotContiguous) {
  const at::Tensor weight = normal({96, 70}, 2, at::kFloat);
  const Nf4Tensor a = nf4_quantize(weight.t()), b = nf4_quantize(weight.t().contiguous());
  expect_same_bits(a.codes, b.codes);
  expect_same_bits(nf4_dequantize(a, {70, 96}, at::kDouble).to(at::kFloat), nf4_dequantize(b, {70, 96}, at::kFloat));
}

// The kernels count elements by thread, by what a thread takes and by block; each must be met once, by the thread that
// has its magnitude. The same arithmetic as in nf4.cu.
TEST(Nf4, ThreadsOfTheKernelMeetEachElementOnce) {
  constexpr int64_t kThreads = 256, kEach = 8, kAhead = 4, kStep = kThreads * kEach;
  for (const int64_t count : {int64_t{8}, int64_t{64}, int64_t{2048}, int64_t{8192}, int64_t{8200}, int64_t{50008}}) {
    std::vector<int> met(static_cast<size_t>(count), 0);
    const int64_t blocks = (count + kAhead * kStep - 1) / (kAhead * kStep);
    for (int64_t block = 0; block < blocks; ++block) {
      for (int64_t thread = 0; thread < kThreads; ++thread) {
        const int64_t first = block * kAhead * kStep + thread * kEach;
        for (int64_t a = 0; a < kAhead; ++a) {
          const int64_t at = first + a * kStep, loaded = std::min(at, count - kEach);
          ASSERT_GE(loaded, 0);
          ASSERT_LE(loaded / 2 + 4, (count + 1) / 2) << "four bytes of codes";
          if (at >= count) break;
          ASSERT_EQ(loaded, at);
          ASSERT_EQ(at / kNf4Block, (at + kEach - 1) / kNf4Block) << "one magnitude";
          for (int64_t k = 0; k < kEach; ++k) ++met[static_cast<size_t>(at + k)];
        }
      }
    }
    EXPECT_TRUE(std::all_of(met.begin(), met.end(), [](int times) { return times == 1; })) << count;
  }
}

TEST(Nf4, NamesWhatDoesNotFit) {
  expect_message(error_of([&] { nf4_quantize(at::ones({4}, at::kInt)); }), {"hrm::nf4_quantize", "Int", "[4]"});
  expect_message(error_of([&] { nf4_quantize(at::ones({0})); }), {"hrm::nf4_quantize", "not empty", "[0]"});
  const Nf4Tensor q = nf4_quantize(at::ones({130}));
  const auto message = [&](const at::Tensor& out, const Nf4Tensor& from) {
    return error_of([&] { nf4_dequantize_(out, from); });
  };
  expect_message(message(at::ones({128}), q), {"hrm::nf4_dequantize_", "64 contiguous uint8", "[65]"});
  expect_message(message(at::ones({130}, at::kInt), q), {"floating-point dtype", "Int"});
  expect_message(message(at::ones({2, 65}).t(), q), {"not contiguous"});
  Nf4Tensor wrong = q;
  wrong.absmax = q.absmax.narrow(0, 0, 2);
  expect_message(message(at::ones({130}), wrong), {"3 contiguous float32 or uint8", "[2]"});
  wrong = q;
  wrong.scales = at::empty({0});
  expect_message(message(at::ones({130}), wrong), {"1 scales and 1 offset", "[0]"});
  wrong = nf4_quantize(at::ones({130}), false);
  wrong.offset = q.offset;
  expect_message(message(at::ones({130}), wrong), {"0 scales and 0 offset"});
}

TEST(Nf4, Products) {
  expect_good_linear_nf4(at::kCPU, {{0, 64, 5}, {1, 64, 5}, {3, 33, 40}, {33, 128, 24}});
}

TEST(Nf4, ProductsNameWhatDoesNotFit) {
  const Nf4Tensor q = nf4_quantize(at::ones({4, 64}));
  const auto message = [&](const at::Tensor& x, const at::Tensor& workspace, const std::optional<at::Tensor>& added) {
    return error_of([&] { linear_nf4(x, q, workspace, added); });
  };
  const at::Tensor x = at::ones({2, 64}), workspace = at::ones({4, 64});
  EXPECT_EQ(message(x, workspace, at::ones({2, 4})), "");
  expect_message(message(at::ones({2, 63}), workspace, {}), {"hrm::linear_nf4", "[2, 63]", "[4, 64]"});
  expect_message(message(x, workspace.to(at::kBFloat16), {}), {"hrm::linear_nf4", "BFloat16"});
  expect_message(message(x, at::ones({5, 64}), {}), {"codes"});
  expect_message(message(x, workspace, at::ones({2, 5})), {"hrm::linear_nf4", "residual", "[2, 5]"});
}

// The loops of the kernel: each summand is met by one thread, and no load reaches beyond the row.
TEST(Nf4, ThreadsOfTheKernelMeetEachSummandOnce) {
  constexpr int kWarps = 8, kLoad = 32, kStep = kWarps * 4 * kLoad;
  for (const auto& [inner, unroll] :
       {std::pair{64, 2}, {128, 1}, {960, 2}, {1024, 1}, {1088, 2}, {2048, 1}, {4096, 2}, {12288, 1}}) {
    std::vector<int> met(static_cast<size_t>(inner), 0);
    for (int warp = 0; warp < kWarps; ++warp) {
      for (int part = 0; part < 4; ++part) {
        const int begin = (warp * 4 + part) * kLoad;
        int left = inner - begin, at = begin;
        for (int first = warp * 4 * kLoad; first < inner; first += kStep * unroll) {
          for (int u = 0; u < unroll; ++u) {
            if (first + kStep * u >= inner) break;
            if (left <= kStep * u) continue;
            ASSERT_LE(at + kStep * u + kLoad, inner) << "a load beyond the row's end";
            for (int i = 0; i < kLoad; ++i) ++met[static_cast<size_t>(at + kStep * u + i)];
          }
          left -= kStep * unroll;
          at += kStep * unroll;
        }
      }
    }
    EXPECT_TRUE(std::all_of(met.begin(), met.end(), [](int times) { return times == 1; })) << inner;
  }
}

}  // namespace
}  // namespace hrm::ops
