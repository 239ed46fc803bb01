#include "ops/decode/decode_attention_cases.h"
#include "ops/decode/paired_rows_cases.h"
#include "ops/gpu_testing.h"

namespace hrm::ops {
namespace {

using namespace testing;

TEST(DecodeAttentionGpu, AgainstFloat64) {
  HRM_NEEDS_GPU();
  const WithoutTf32 exact;
  for (const DecodeCase& c : decode_cases()) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
      expect_good_decode(c, dtype, at::kCUDA);
    }
  }
  expect_good_decode({.rows = 2, .heads = 2, .kv_heads = 2, .head_dim = 64, .capacity = 5000}, at::kBFloat16,
                     at::kCUDA);
}

TEST(DecodeAttentionGpu, Views) {
  HRM_NEEDS_GPU();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) expect_views_to_do(dtype, at::kCUDA);
}

// The kernels take positions in the same order.
TEST(DecodeAttentionGpu, Ring) {
  HRM_NEEDS_GPU();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    expect_ring_to_do(dtype, at::kCUDA, /*same_bits=*/true);
  }
}

// Whatever the other rows and however large the cache.
TEST(DecodeAttentionGpu, ARowAloneGivesTheSameBits) {
  HRM_NEEDS_GPU();
  for (const int64_t rows : {6, 300}) {  // the second more than the kernel that loads ahead takes
    const DecodeCase c{.rows = rows, .capacity = 500, .norm = true};
    const DecodeInputs in = decode_inputs(c, at::kBFloat16, at::kCUDA);
    const at::Tensor together = in.run();
    for (int64_t row = 0; row<c.rows; row += rows> 6 ? 37 : 1) {
      DecodeInputs alone = in;
      const int64_t positions = in.lengths[row].item<int64_t>() + 1;
      alone.qkv = in.qkv.narrow(0, row, 1);
      alone.keys = in.keys.narrow(0, row, 1).narrow(2, 0, positions);
      alone.values = in.values.narrow(0, row, 1).narrow(2, 0, positions);
      alone.lengths = in.lengths.narrow(0, row, 1);
      expect_same_bits(alone.run(), together.narrow(0, row, 1), cat("row ", row, " of ", rows));
    }
  }
}

// What is asked for before the kernel in front is done is the same.
TEST(DecodeAttentionGpu, Steady) {
  HRM_NEEDS_GPU();
  for (const int64_t rows : {3, 300}) {
    for (const bool norm : {false, true}) {
      const DecodeInputs in = decode_inputs({.rows = rows, .capacity = 300, .norm = norm}, at::kBFloat16, at::kCUDA);
      DecodeAttentionOptions steady = in.options;
      steady.steady = true;
      const at::Tensor want = in.run(), before = in.qkv.clone();
      for (int i = 0; i < 5; ++i) {
        in.qkv.zero_();
        at::cuda::device_synchronize();
        in.qkv.copy_(before);
        expect_same_bits(in.run(steady), want, cat(rows, " rows, norm ", norm));
      }
    }
  }
}

// The result in pairs, of one head or several that share keys; and what no pairs are made of.
TEST(DecodeAttentionGpu, Pairs) {
  HRM_NEEDS_GPU();
  const bool hopper = at::cuda::getCurrentDeviceProperties()->major == 9;
  struct Sizes {
    int64_t heads, kv_heads, head_dim;
    bool pairs;
  };
  for (const Sizes& s : {Sizes{4, 4, 128, true}, Sizes{16, 4, 64, true}, Sizes{8, 2, 32, true}, Sizes{4, 4, 32, false},
                         Sizes{3, 1, 64, false}, Sizes{16, 1, 64, false}}) {
    for (const int64_t rows : {1, 12, 48, 49}) {
      for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
        const std::string what = cat(rows, " rows, ", s.heads, " of ", s.kv_heads, " x ", s.head_dim, " ", dtype);
        const DecodeInputs in = decode_inputs(
            {.rows = rows, .heads = s.heads, .kv_heads = s.kv_heads, .head_dim = s.head_dim}, dtype, at::kCUDA);
        const PairedRows y = decode_attention_paired_(in.qkv, in.keys, in.values, in.lengths, in.options);
        expect_same_bits(y.rows, in.run(), what);
        ASSERT_EQ(y.pairs.defined(), hopper && s.pairs && rows <= 48 && dtype == at::kBFloat16) << what;
        if (y.pairs.defined()) expect_pairs_of(y.pairs, y.rows, what);
      }
    }
  }
}

TEST(DecodeAttentionGpu, SameEachTime) {
  HRM_NEEDS_GPU();
  const DecodeInputs in = decode_inputs({.rows = 40, .capacity = 700}, at::kBFloat16, at::kCUDA);
  expect_same_each_time([&] { return std::vector<at::Tensor>{in.run()}; }, 20, "decode_attention_");
}

TEST(DecodeAttentionGpu, Captured) {
  HRM_NEEDS_GPU();
  const DecodeInputs in = decode_inputs({.rows = 4, .capacity = 64}, at::kBFloat16, at::kCUDA);
  in.lengths.fill_(0);
  DecodeInputs eager = in;
  at::Tensor out = at::empty_like(in.run());
  Captured captured([&] { out.copy_(in.run()); });
  for (int64_t length = 0; length < 60; length += 7) {
    in.qkv.copy_(normal(in.qkv.sizes(), 50 + static_cast<uint64_t>(length), at::kBFloat16, at::kCUDA));
    in.lengths.fill_(length);
    eager.keys = in.keys.clone();
    eager.values = in.values.clone();
    const at::Tensor want = eager.run();
    captured.replay();
    expect_same_bits(out, want, cat("length ", length));
    expect_same_bits(in.keys, eager.keys, cat("length ", length));
  }
}

TEST(DecodeAttentionGpu, CapturedRing) {
  HRM_NEEDS_GPU();
  const DecodeInputs in =
      decode_inputs({.rows = 4, .capacity = 16, .window = 16, .longest = 64}, at::kBFloat16, at::kCUDA);
  in.lengths.fill_(0);
  DecodeInputs eager = in;
  eager.keys = in.keys.clone();
  eager.values = in.values.clone();
  at::Tensor out = at::empty_like(eager.run());
  Captured captured([&] { out.copy_(in.run()); });
  for (int64_t length = 0; length < 60; length += 7) {
    in.qkv.copy_(normal(in.qkv.sizes(), 50 + static_cast<uint64_t>(length), at::kBFloat16, at::kCUDA));
    in.lengths.fill_(length);
    eager.keys = in.keys.clone();
    eager.values = in.values.clone();
    const at::Tensor want = eager.run();
    captured.replay();
    expect_same_bits(out, want, cat("length ", length));
    expect_same_bits(in.keys, eager.keys, cat("length ", length));
  }
}

}  // namespace
}  // namespace hrm::ops
