#include "hrm/ops/linear.h"
#include "hrm/ops/linear_add.h"
#include "hrm/ops/linear_swiglu.h"
#include "hrm/ops/weighted_rms_norm.h"
#include "ops/decode/decode_linear_cases.h"
#include "ops/decode/paired_rows_cases.h"
#include "ops/gpu_testing.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

// Both sides of what the kernel for few rows takes and of its ways; sums of all lengths.
TEST(DecodeLinearGpu, AgainstFloat64) {
  HRM_NEEDS_GPU();
  const at::NoGradGuard no_grad;
  const WithoutTf32 exact;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
    for (const int64_t rows : {0, 1, 3, 8, 9, 16, 17, 32, 33, 64, 65}) {
      for (const auto& [inner, width] : {std::pair<int64_t, int64_t>{8, 1},
                                         {12, 5},
                                         {264, 31},
                                         {768, 96},
                                         {1032, 40},
                                         {1304, 3},
                                         {768, 1600},
                                         {2048, 1024},
                                         {3072, 1024}}) {
        if (dtype == at::kDouble && rows > 3) continue;
        expect_good_decode_linear(rows, inner, width, dtype, at::kCUDA);
      }
    }
  }
}

// Weights so large that all rows take tiles (skinny_gemm_tiles.h): rounds of the ring of stages, sums and columns that
// do not fill the last tile, the clusters that each of them asks for; and both sides of the most rows.
TEST(DecodeLinearGpu, TilesAgainstFloat64) {
  HRM_NEEDS_GPU();
  const at::NoGradGuard no_grad;
  const WithoutTf32 exact;
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    for (const int64_t rows : {1, 8, 9, 31, 48, 64, 65, 96, 97, 128, 129}) {
      for (const auto& [inner, width] : {std::pair<int64_t, int64_t>{2048, 1024},
                                         {1032, 2056},
                                         {6152, 344},
                                         {20000, 112},
                                         {256, 8184},
                                         {520, 7000},
                                         {72, 29200}}) {
        if (dtype == at::kHalf && rows % 16 != 0) continue;
        expect_good_decode_linear(rows, inner, width, dtype, at::kCUDA);
      }
    }
  }
}

// By tiles of both products, of the first, of none; clusters of all sizes, a last tile that is not full.
TEST(DecodeLinearGpu, Ahead) {
  HRM_NEEDS_GPU();
  const at::NoGradGuard no_grad;
  const WithoutTf32 exact;
  const bool hopper = at::cuda::getCurrentDeviceProperties()->major == 9;
  struct Sizes {
    int64_t inner, width, next;
    bool tiles;
  };
  for (const Sizes& s : {Sizes{2048, 1024, 4096, true}, Sizes{1032, 2056, 1096, true}, Sizes{2104, 1000, 2104, true},
                         Sizes{300000, 8, 40, true}, Sizes{2048, 1024, 64, true}, Sizes{512, 512, 4096, false},
                         Sizes{288, 7504, 296, true}}) {
    for (const int64_t rows : {1, 5, 48, 65, 128, 129}) {
      for (const bool gated : {false, true}) {
        const std::string what = cat(rows, " rows, ", s.inner, " -> ", s.width, " -> ", s.next, gated ? ", gated" : "");
        const DecodeChain chain = decode_chain(rows, s.inner, s.width, s.next, gated, at::kBFloat16, at::kCUDA);
        expect_good_decode_chain(chain, hopper && s.tiles && rows <= 128, what);
      }
    }
  }
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf}) {
    expect_good_decode_chain(decode_chain(20, 2048, 1024, 4096, false, dtype, at::kCUDA), false, cat(dtype));
  }
}

// Weights in 8 bits by tiles and by the kernel for few rows: rounds of the ring of stages, sums and columns that do not
// fill the last tile, both sides of the most rows, and sizes that neither takes.
TEST(DecodeLinearGpu, Weights8AgainstFloat64) {
  HRM_NEEDS_GPU();
  const at::NoGradGuard no_grad;
  const WithoutTf32 exact;
  for (const at::ScalarType format : {at::kFloat8_e4m3fn, at::kChar}) {
    for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
      for (const int64_t rows : {1, 8, 12, 31, 48, 65, 96, 97, 128, 129}) {
        if (dtype == at::kHalf && rows % 16 != 0) continue;
        for (const auto& [inner, width] : {std::pair<int64_t, int64_t>{2048, 1024},
                                           {1040, 2056},
                                           {6160, 344},
                                           {20000, 112},
                                           {256, 8184},
                                           {528, 7000},
                                           {80, 29200},
                                           {768, 96},
                                           {1032, 2056},
                                           {1024, 2049}}) {
          expect_good_decode_linear8(rows, inner, width, dtype, format, at::kCUDA);
        }
      }
    }
  }
}

TEST(DecodeLinearGpu, Weights8OfEveryNumberOfRows) {
  HRM_NEEDS_GPU();
  const at::NoGradGuard no_grad;
  for (const auto& [format, inner, width, around] :
       {std::tuple<at::ScalarType, int64_t, int64_t, Around>{at::kFloat8_e4m3fn, 2048, 1024, Around::residual},
        {at::kChar, 1040, 2056, Around::norm_and_gate},
        {at::kFloat8_e4m3fn, 12304, 176, Around::nothing}}) {
    const DecodeLinearInput all =
        in_8_bits(decode_linear_input(128, inner, width, around, at::kBFloat16, at::kCUDA), format);
    const at::Tensor wanted = all.run();
    expect_good(all, cat(format, " ", describe(all, around)));
    for (int64_t rows = 1; rows <= 128; ++rows) {
      const int64_t first = 128 - rows;
      expect_same_bits(rows_of(all, first, rows).run(), wanted.narrow(0, first, rows),
                       cat(format, " ", inner, " -> ", width, ", ", rows, " rows"));
    }
  }
}

// By the product's epilogue and, where a slice or a rank does not fit or the weight is small, by an op of its own.
TEST(DecodeLinearGpu, AdaptersAgainstFloat64) {
  HRM_NEEDS_GPU();
  const at::NoGradGuard no_grad;
  const WithoutTf32 exact;
  for (const int bits : {16, 8}) {
    for (const auto& [inner, width] : {std::pair<int64_t, int64_t>{2048, 1024}, {1040, 2056}, {8208, 264}, {768, 96}}) {
      for (const int64_t rows : {1, 12, 33, 128}) {
        for (const auto& [rank, slices, scale] :
             {std::tuple<int64_t, int64_t, double>{16, 1, 1}, {8, 3, 0.5}, {64, 2, 2}, {4, 1, 1}, {16, 9, 1}}) {
          for (const Around around : {Around::nothing, Around::norm_and_residual, Around::norm_and_gate}) {
            DecodeLinearInput in = decode_linear_input(rows, inner, width, around, at::kBFloat16, at::kCUDA);
            if (bits == 8) in = in_8_bits(in, at::kFloat8_e4m3fn);
            in = with_adapter(in, rank, slices, scale);
            expect_good(in, cat(describe(in, around), ", rank ", rank, ", ", slices, " slices"));
          }
        }
      }
    }
  }
}

// Weights in 8 bits and adapters, of the first product, the second or both; a small second product, too.
TEST(DecodeLinearGpu, Weights8Ahead) {
  HRM_NEEDS_GPU();
  const at::NoGradGuard no_grad;
  const WithoutTf32 exact;
  const bool hopper = at::cuda::getCurrentDeviceProperties()->major == 9;
  for (const auto& [inner, width, next] :
       {std::tuple<int64_t, int64_t, int64_t>{2048, 1024, 4096}, {1040, 2064, 1096}, {2064, 1040, 48}}) {
    for (const int64_t rows : {1, 12, 65, 128}) {
      for (const int kind : {1, 2, 3}) {
        for (const bool adapts : {false, true}) {
          DecodeChain chain = decode_chain(rows, inner, width, next, kind == 3, at::kBFloat16, at::kCUDA);
          if (kind & 1) chain.first = in_8_bits(chain.first, at::kFloat8_e4m3fn);
          if (kind & 2) chain.second = in_8_bits(chain.second, at::kChar);
          if (adapts) {
            chain.first = with_adapter(chain.first, 16, 1, 0.5);
            chain.second = with_adapter(chain.second, 16, 3, 1);
          }
          expect_good_decode_chain(
              chain, hopper, cat(rows, " rows, ", inner, " -> ", width, " -> ", next, " kind ", kind, " ", adapts));
        }
      }
    }
  }
}

TEST(DecodeLinearGpu, ARowWithAnAdapterAloneGivesTheSameBits) {
  HRM_NEEDS_GPU();
  for (const Around around : {Around::residual, Around::gate}) {
    const DecodeLinearInput all = with_adapter(
        in_8_bits(decode_linear_input(128, 2048, 1032, around, at::kBFloat16, at::kCUDA), at::kFloat8_e4m3fn), 16, 3,
        0.7);
    const at::Tensor wanted = all.run();
    for (const auto& [first, rows] : {std::pair<int64_t, int64_t>{0, 1}, {5, 8}, {100, 17}, {3, 33}, {60, 65}}) {
      expect_same_bits(rows_of(all, first, rows).run(), wanted.narrow(0, first, rows), cat(first, " ", rows));
    }
  }
}

TEST(DecodeLinearGpu, ARowAloneGivesTheSameBitsAhead) {
  HRM_NEEDS_GPU();
  const DecodeChain all = decode_chain(128, 3072, 1024, 3072, true, at::kBFloat16, at::kCUDA);
  const DecodedAhead all_rows = all.run_first();
  const at::Tensor want = all.run_second(all_rows);
  for (const auto& [first, rows] : {std::pair<int64_t, int64_t>{0, 1}, {5, 8}, {100, 17}, {3, 33}, {60, 65}}) {
    DecodeChain part = all;
    part.first.x = all.first.x.narrow(0, first, rows);
    part.first.options.residual = all.first.options.residual->narrow(0, first, rows);
    const DecodedAhead some_rows = part.run_first();
    expect_same_bits(some_rows.y, all_rows.y.narrow(0, first, rows), cat(first, " ", rows));
    expect_same_bits(part.run_second(some_rows), want.narrow(0, first, rows), cat(first, " ", rows, ", second"));
  }
}

// The same with x in pairs, too; without a norm.
DecodeLinearInput with_pairs(DecodeLinearInput in) {
  in.pairs = pairs_of(in.x);
  return in;
}

// Both sides of the most rows of each kernel, one and two warpgroups, gates, adapters, rounds of the ring of stages, a
// last tile that is not full; and widths for which no pairs are made.
TEST(DecodeLinearGpu, PairsAgainstFloat64) {
  HRM_NEEDS_GPU();
  const at::NoGradGuard no_grad;
  const WithoutTf32 exact;
  const bool hopper = at::cuda::getCurrentDeviceProperties()->major == 9;
  for (const auto& [inner, width] : {std::pair<int64_t, int64_t>{2048, 1024},
                                     {1024, 2056},
                                     {6144, 352},
                                     {20096, 128},
                                     {128, 16448},
                                     {512, 12288},
                                     {4096, 3072}}) {
    for (const int64_t rows : {1, 8, 12, 16, 17, 32, 33, 48, 49}) {
      for (const Around around : {Around::nothing, Around::residual, Around::gate}) {
        for (const bool adapts : {false, true}) {
          DecodeLinearInput in =
              in_8_bits(decode_linear_input(rows, inner, width, around, at::kBFloat16, at::kCUDA), at::kFloat8_e4m3fn);
          if (adapts) in = with_adapter(in, 16, 3, 0.5);
          in = with_pairs(in);
          const std::string what = describe(in, around);
          expect_good(in, what);
          const PairedRows y = in.run_paired();
          const bool makes = hopper && in.options.gated && rows <= 48 && width % 128 == 0;
          ASSERT_EQ(y.pairs.defined(), makes) << what;
          if (makes) expect_pairs_of(y.pairs, y.rows, what);
        }
      }
    }
  }
}

// Numbers of a run that differ by more than e4m3 reaches, runs of zeros, of tiny and of huge numbers.
TEST(DecodeLinearGpu, PairsOfAnySize) {
  HRM_NEEDS_GPU();
  const at::NoGradGuard no_grad;
  const WithoutTf32 exact;
  DecodeLinearInput in =
      in_8_bits(decode_linear_input(20, 2048, 2048, Around::gate, at::kBFloat16, at::kCUDA), at::kFloat8_e4m3fn);
  in.x.mul_(at::pow(2.0, 6 * normal({1, 2048}, 9, at::kFloat, at::kCUDA)));
  in.x.narrow(1, 64, 64).zero_();
  in.x.narrow(1, 128, 64).mul_(0x1p-120);
  in.x.narrow(1, 192, 64).mul_(0x1p20);
  in.x.narrow(0, 3, 1).zero_();
  in = with_pairs(in);
  expect_good(in, "sizes");
  const PairedRows y = in.run_paired();
  if (y.pairs.defined()) expect_pairs_of(y.pairs, y.rows, "sizes");
}

// A number that is not finite makes its own row not-a-number and no other.
TEST(DecodeLinearGpu, PairsOfARowThatIsNotFinite) {
  HRM_NEEDS_GPU();
  const at::NoGradGuard no_grad;
  const DecodeLinearInput in =
      in_8_bits(decode_linear_input(12, 2048, 2048, Around::residual, at::kBFloat16, at::kCUDA), at::kFloat8_e4m3fn);
  const at::Tensor norm = at::ones({2048}, in.x.options().dtype(at::kFloat)), pairs = pairs_of(in.x);
  const DecodedAhead want = decode_linear_ahead({in.x, pairs}, in.stored(), *in.options.residual, norm);
  const at::Tensor bad = in.options.residual->clone();
  bad[5][70] = std::numeric_limits<float>::infinity();
  const DecodedAhead first = decode_linear_ahead({in.x, pairs}, in.stored(), bad, norm);
  if (!first.ahead.pairs.defined()) GTEST_SKIP() << "this GPU makes no pairs";
  DecodeLinearInput next = in;
  next.options = {.norm = norm, .eps = 1e-5, .ahead = want.ahead};
  const at::Tensor all = decode_linear(want.y, next.stored(), next.options);
  next.options.ahead = first.ahead;
  const at::Tensor y = decode_linear(first.y, next.stored(), next.options);
  EXPECT_FALSE(at::isfinite(y[5]).any().item<bool>());
  expect_same_bits(y.narrow(0, 0, 5), all.narrow(0, 0, 5));
  expect_same_bits(y.narrow(0, 6, 6), all.narrow(0, 6, 6));
}

// Products that hand their rows over in pairs, with a norm between them.
TEST(DecodeLinearGpu, PairsAhead) {
  HRM_NEEDS_GPU();
  const at::NoGradGuard no_grad;
  const WithoutTf32 exact;
  const bool hopper = at::cuda::getCurrentDeviceProperties()->major == 9;
  for (const auto& [inner, width, next] : {std::tuple<int64_t, int64_t, int64_t>{2048, 1024, 4096},
                                           {1024, 2176, 1152},
                                           {1024, 3072, 1096},
                                           {1024, 2120, 1096}}) {
    for (const int64_t rows : {1, 12, 48, 49}) {
      for (const bool adapts : {false, true}) {
        DecodeChain chain = decode_chain(rows, inner, width, next, adapts, at::kBFloat16, at::kCUDA);
        chain.first = with_pairs(in_8_bits(chain.first, at::kFloat8_e4m3fn));
        if (width % 16 == 0) chain.second = in_8_bits(chain.second, at::kFloat8_e4m3fn);
        if (adapts) {
          chain.first = with_adapter(chain.first, 16, 1, 0.5);
          chain.second = with_adapter(chain.second, 16, 3, 1);
        }
        const std::string what = cat(rows, " rows, ", inner, " -> ", width, " -> ", next, " ", adapts);
        expect_good_decode_chain(chain, hopper, what);
        const DecodedAhead first = chain.run_first();
        ASSERT_EQ(first.ahead.pairs.defined(), hopper && rows <= 48 && width % 128 == 0) << what;
        if (!first.ahead.pairs.defined()) continue;
        expect_pairs_of(first.ahead.pairs, first.ahead.scaled, what);
        // Only a gated product that has read pairs makes them.
        ASSERT_EQ(chain.run_second_paired(first).pairs.defined(), adapts && next % 128 == 0) << what;
      }
    }
  }
}

TEST(DecodeLinearGpu, ARowAloneGivesTheSameBitsOfPairs) {
  HRM_NEEDS_GPU();
  // Up to 16, 32 and 48 rows have kernels of their own.
  const DecodeLinearInput in = with_adapter(
      in_8_bits(decode_linear_input(48, 2048, 1024, Around::gate, at::kBFloat16, at::kCUDA), at::kFloat8_e4m3fn), 16, 3,
      0.7);
  const PairedRows all = with_pairs(in).run_paired();
  for (const auto& [first, rows] : {std::pair<int64_t, int64_t>{0, 1}, {5, 8}, {30, 17}, {3, 32}, {10, 33}}) {
    const DecodeLinearInput part = with_pairs(rows_of(in, first, rows));
    const PairedRows some = part.run_paired();
    expect_same_bits(some.rows, all.rows.narrow(0, first, rows), cat(first, " ", rows));
    if (!all.pairs.defined()) continue;
    expect_same_bits(numbers_of(some.pairs, rows, 1024), numbers_of(all.pairs, 48, 1024).narrow(0, first, rows),
                     cat(first, " ", rows, ", pairs"));
  }
}

// Pairs that are all zero, beside an x that is not: the product is zero where they are read.
TEST(DecodeLinearGpu, PairsAreWhatIsMultiplied) {
  HRM_NEEDS_GPU();
  const at::NoGradGuard no_grad;
  if (at::cuda::getCurrentDeviceProperties()->major != 9) GTEST_SKIP() << "this GPU has no kernel of pairs";
  for (const int64_t rows : {5, 20, 48}) {
    for (const int64_t width : {1024, 4096}) {
      const DecodeLinearInput in = in_8_bits(
          decode_linear_input(rows, 2048, width, Around::residual, at::kBFloat16, at::kCUDA), at::kFloat8_e4m3fn);
      const at::Tensor zeros = at::zeros_like(pairs_of(in.x)), &residual = *in.options.residual;
      const std::string what = cat(rows, " rows to ", width);
      expect_same_bits(decode_linear({in.x, zeros}, in.stored(), in.options), residual, what);
      const at::Tensor norm = normal({width}, 9, at::kFloat, at::kCUDA);
      expect_same_bits(decode_linear_ahead({in.x, zeros}, in.stored(), residual, norm).y, residual, what + ", ahead");
      EXPECT_FALSE(decode_linear({in.x, zeros}, in.stored()).any().item<bool>()) << what;
      const at::Tensor first_norm = normal({2048}, 10, at::kFloat, at::kCUDA);
      const AheadOfNorm ahead{.scaled = in.x, .squares = at::ones({rows, 32}, norm.options()), .pairs = zeros};
      EXPECT_FALSE(decode_linear(in.x, in.stored(), {.norm = first_norm, .ahead = ahead}).any().item<bool>()) << what;
    }
  }
}

// What no kernel takes with pairs is computed without them: integers, other dtypes, other widths.
TEST(DecodeLinearGpu, PairsThatAreNotRead) {
  HRM_NEEDS_GPU();
  const at::NoGradGuard no_grad;
  for (const auto& [format, dtype, inner] :
       {std::tuple<at::ScalarType, at::ScalarType, int64_t>{at::kChar, at::kBFloat16, 2048},
        {at::kFloat8_e4m3fn, at::kHalf, 2048},
        {at::kFloat8_e4m3fn, at::kBFloat16, 2112}}) {
    DecodeLinearInput in = in_8_bits(decode_linear_input(12, inner, 1024, Around::gate, dtype, at::kCUDA), format);
    const at::Tensor want = in.run();
    in.pairs = at::zeros_like(pairs_of(in.x));
    const PairedRows ours = in.run_paired();
    expect_same_bits(ours.rows, want, cat(format, " ", dtype, " ", inner));
    EXPECT_FALSE(ours.pairs.defined()) << format << " " << dtype << " " << inner;
  }
}

TEST(DecodeLinearGpu, BadPairs) {
  HRM_NEEDS_GPU();
  const DecodeLinearInput in =
      in_8_bits(decode_linear_input(12, 2048, 1024, Around::nothing, at::kBFloat16, at::kCUDA), at::kFloat8_e4m3fn);
  const at::Tensor pairs = pairs_of(in.x);
  const auto error = [&](const at::Tensor& p) { return error_of([&] { decode_linear({in.x, p}, in.stored()); }); };
  EXPECT_EQ(error(pairs), "");
  expect_message(error(pairs.to(at::kInt)), {"hrm::decode_linear", "uint8", "Int"});
  const at::Tensor norm = at::ones({2048}, in.x.options().dtype(at::kFloat));
  expect_message(error_of([&] {
                   decode_linear({in.x, pairs}, in.stored(), {.norm = norm});
                 }),
                 {"hrm::decode_linear", "ahead"});
  if (at::cuda::getCurrentDeviceProperties()->major == 9) {
    expect_message(error(pairs.narrow(0, 0, 1000)), {"hrm::decode_linear", "[12, 2048]", "1000"});
    const at::Tensor moved = at::constant_pad_nd(pairs, {1, 0}).narrow(0, 1, pairs.numel());
    expect_message(error(moved), {"hrm::decode_linear", "aligned"});
  }
}

TEST(DecodeLinearGpu, BadInput) {
  HRM_NEEDS_GPU();
  expect_decode_linear_to_name_bad_input(at::kCUDA);
  expect_decode_linear_to_name_bad_weights(at::kCUDA);
}

// Rows that are normalised in the product's kernel are those of the norm's own, and what reads the weight early gives
// what waits for it. A narrow product with long sums adds them up in another order where no norm is in front
// (skinny_gemm.h); with one it is compared with the ops where both are wide.
TEST(DecodeLinearGpu, SameBitsAsTheOps) {
  HRM_NEEDS_GPU();
  const at::NoGradGuard no_grad;
  for (const int64_t rows : {1, 8, 20}) {
    for (const int64_t inner : {64, 768, 1280, 2048}) {
      for (const Around around : kAround) {
        const bool wide = inner >= 1024 && (around == Around::norm || around == Around::norm_and_residual);
        const DecodeLinearInput in =
            decode_linear_input(rows, inner, wide ? 2056 : 64, around, at::kBFloat16, at::kCUDA);
        const DecodeLinearOptions& o = in.options;
        const at::Tensor x = o.norm ? weighted_rms_norm(in.x, *o.norm, o.eps) : in.x;
        const at::Tensor want = o.gated      ? linear_swiglu(x, in.weight)
                                : o.residual ? linear_add(x, in.weight, in.weight, *o.residual)
                                             : linear(x, in.weight, in.weight);
        expect_same_bits(in.run(), want, cat(rows, " rows of ", inner, ", around ", static_cast<int>(around)));
      }
    }
  }
}

TEST(DecodeLinearGpu, ARowAloneGivesTheSameBits) {
  HRM_NEEDS_GPU();
  for (const auto& [inner, width] : {std::pair<int64_t, int64_t>{768, 200}, {1032, 40}, {2048, 1024}, {3072, 1024}}) {
    for (const Around around : kAround) {
      const DecodeLinearInput in = decode_linear_input(32, inner, width, around, at::kHalf, at::kCUDA);
      if (in.options.norm && inner > 2048) continue;  // the norm's own kernel sums the squares of such rows differently
      const at::Tensor all = in.run();
      for (const auto& [first, rows] : {std::pair<int64_t, int64_t>{0, 1}, {5, 8}, {9, 12}, {31, 1}, {3, 29}}) {
        DecodeLinearInput part = in;
        part.x = in.x.narrow(0, first, rows);
        if (part.options.residual) part.options.residual = in.options.residual->narrow(0, first, rows);
        expect_same_bits(part.run(), all.narrow(0, first, rows),
                         cat(inner, " -> ", width, ", ", first, " ", rows, ", around ", static_cast<int>(around)));
      }
    }
  }
}

TEST(DecodeLinearGpu, ARowAloneGivesTheSameBitsOfTiles) {
  HRM_NEEDS_GPU();
  for (const auto& [inner, width] : {std::pair<int64_t, int64_t>{2048, 1024}, {1032, 2056}, {8200, 264}}) {
    for (const Around around : kAround) {
      const DecodeLinearInput in = decode_linear_input(128, inner, width, around, at::kBFloat16, at::kCUDA);
      const at::Tensor all = in.run();
      for (const auto& [first, rows] :
           {std::pair<int64_t, int64_t>{0, 1}, {5, 8}, {9, 12}, {100, 17}, {3, 33}, {60, 65}}) {
        DecodeLinearInput part = in;
        part.x = in.x.narrow(0, first, rows);
        if (part.options.residual) part.options.residual = in.options.residual->narrow(0, first, rows);
        expect_same_bits(part.run(), all.narrow(0, first, rows),
                         cat(inner, " -> ", width, ", ", first, " ", rows, ", around ", static_cast<int>(around)));
      }
    }
  }
}

TEST(DecodeLinearGpu, Misaligned) {
  HRM_NEEDS_GPU();
  const auto moved = [](const at::Tensor& t) {
    const at::Tensor room = at::empty({t.numel() + 1}, t.options());
    return room.narrow(0, 1, t.numel()).view(t.sizes()).copy_(t);
  };
  for (const Around around : kAround) {
    const DecodeLinearInput in = decode_linear_input(3, 64, 10, around, at::kBFloat16, at::kCUDA);
    DecodeLinearInput other{moved(in.x), moved(in.weight), in.options};
    if (other.options.norm) other.options.norm = moved(*other.options.norm);
    if (other.options.residual) other.options.residual = moved(*other.options.residual);
    expect_same_bits(other.run(), in.run(), cat("misaligned, around ", static_cast<int>(around)));
  }
}

}  // namespace
}  // namespace hrm::ops
