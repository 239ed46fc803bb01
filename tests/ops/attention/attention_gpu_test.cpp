#include "hrm/ops/attention.h"

#include <cmath>

#include "hrm/ops/linear.h"
#include "hrm/ops/linear_swiglu.h"
#include "ops/attention/attention_cases.h"
#include "ops/attention/attention_impl.h"
#include "ops/cuda/sm90/tensor_map.h"
#include "ops/gpu_testing.h"
#include "ops/with_tiles.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

// Only the kernels that every device has, while it lives.
class WithPortable {
 public:
  explicit WithPortable(bool portable) { set_portable_attention(portable); }
  ~WithPortable() { set_portable_attention(false); }
};

// Both sides of every number of tiles, and the lengths of the models.
std::vector<int64_t> short_lengths() {
  return {1, 7, 16, 32, 33, 64, 65, 81, 82, 96, 97, 112, 113, 127, 128};
}

// Kernels: those of the device's generation, or those that every device has.
class AttentionLengthGpu : public ::testing::TestWithParam<std::tuple<bool, int64_t>> {};

TEST_P(AttentionLengthGpu, AsGoodAsPlainAten) {
  HRM_NEEDS_GPU();
  const auto [portable, length] = GetParam();
  const WithPortable with_portable(portable);
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    for (const int64_t head_dim : {64, 32}) {
      if (!portable && head_dim == 32) continue;  // only the portable kernels have it
      const int64_t heads = 1 + length % 8;
      const bool rotated = length % 3 != 0;
      const AttentionCase c = attention_case(3, length, heads, head_dim, rotated, dtype, at::kCUDA);
      ASSERT_TRUE(attention_fits(c.qkv, heads));
      expect_good_attention(c, cat(dtype, " heads ", heads, " head_dim ", head_dim, " rotated ", rotated));
    }
  }
}

std::string name_of_length(const ::testing::TestParamInfo<std::tuple<bool, int64_t>>& info) {
  return cat(std::get<0>(info.param) ? "Portable" : "Own", std::get<1>(info.param));
}

INSTANTIATE_TEST_SUITE_P(Lengths, AttentionLengthGpu,
                         ::testing::Combine(::testing::Bool(), ::testing::ValuesIn(short_lengths())), name_of_length);

// A few more heads than a multiprocessor works on at once, so that persistent blocks have two or three.
TEST(AttentionGpu, MoreHeadsThanBlocks) {
  HRM_NEEDS_GPU();
  const int64_t processors = at::cuda::getCurrentDeviceProperties()->multiProcessorCount;
  for (const int64_t length : {64, 82, 97, 128}) {
    const int64_t batch = processors * (length <= 64 ? 4 : 2) / 8 + 1;
    expect_good_attention(attention_case(batch, length, 8, 64, true, at::kBFloat16, at::kCUDA), cat("L ", length));
  }
}

// So many that a block's ring of stages goes round more than once.
TEST(AttentionGpu, ManyHeadsLarge) {
  HRM_NEEDS_GPU();
  for (const bool portable : {false, true}) {
    const WithPortable with_portable(portable);
    for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
      for (const int64_t length : {60, 82, 97, 128}) {
        expect_good_attention(attention_case(200, length, 8, 64, true, dtype, at::kCUDA),
                              cat(dtype, " L ", length, " portable ", portable));
      }
      expect_good_attention(attention_case(2, 82, 8, 64, false, dtype, at::kCUDA),
                            cat(dtype, " no rotation, portable ", portable));
    }
  }
}

// What our kernel does not take: the rotation is ours, the rest ATen's.
TEST(AttentionGpu, OtherShapesGoThroughSdpa) {
  HRM_NEEDS_GPU();
  const WithoutTf32 without_tf32;
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kFloat}) {
    for (const bool rotated : {false, true}) {
      for (const auto& [length, heads, head_dim] :
           std::vector<std::tuple<int64_t, int64_t, int64_t>>{{129, 2, 64}, {200, 8, 64}, {20, 2, 128}, {20, 3, 8}}) {
        if (dtype == at::kHalf && !rotated) continue;  // the library's kernels, which take long to be made
        const AttentionCase c = attention_case(3, length, heads, head_dim, rotated, dtype, at::kCUDA);
        ASSERT_FALSE(attention_fits(c.qkv, heads));
        expect_good_attention(c, cat(dtype, " L ", length, " heads ", heads, " head_dim ", head_dim));
      }
    }
  }
  expect_good_attention(attention_case(1, 901, 4, 64, true, at::kBFloat16, at::kCUDA), "a maze");
  expect_good_attention(attention_case(3, 20, 2, 6, true, at::kFloat, at::kCUDA), "head_dim 6: by elements");
  expect_good_attention(attention_case(3, 20, 2, 64, true, at::kDouble, at::kCUDA), "float64");
}

TEST(AttentionGpu, BackendsAgree) {
  HRM_NEEDS_GPU();
  const AttentionCase c = attention_case(5, 82, 8, 64, true, at::kBFloat16, at::kCUDA);
  const at::Tensor grad_out = grad_for(c);
  const AttentionResult ours = run_ours(c, grad_out);
  const auto near = [&](const AttentionResult& other) {
    // Two roundings to bfloat16 of values up to 4, and the weights' rounding.
    EXPECT_LE(largest_difference(ours.out, other.out), 0x1p-7 * ours.out.abs().max().item<double>());
    EXPECT_LE(mean_difference(ours.grad, other.grad), 0x1p-7 * ours.grad.abs().mean().item<double>());
  };
  {
    const WithSdpa with_sdpa;
    EXPECT_FALSE(attention_fits(c.qkv, c.heads));
    near(run_ours(c, grad_out));
    expect_good_attention(c, "sdpa");
  }
  {
    const WithReference with_reference;
    EXPECT_FALSE(attention_fits(c.qkv, c.heads));
    near(run_ours(c, grad_out));
    const auto [out, lse] = attention_forward(c.qkv, c.heads, c.cos, c.sin);
    const auto expected = reference::attention_forward(c.qkv, c.heads, c.cos, c.sin);
    expect_same_bits(out, std::get<0>(expected));
    expect_same_bits(lse, std::get<1>(expected));
  }
  EXPECT_TRUE(attention_fits(c.qkv, c.heads));
}

TEST(AttentionGpu, ScoresFarFromZero) {
  HRM_NEEDS_GPU();
  for (const bool portable : {false, true}) {
    const WithPortable with_portable(portable);
    for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
      // Scores of several hundred. No rotation: its rounding would choose the winner of the softmax.
      expect_good_attention(attention_case(3, 82, 4, 64, false, dtype, at::kCUDA, 8),
                            cat(dtype, " large scores, portable ", portable));
    }
    // All scores far below zero: the logarithm of the sum is negative, the padding must not win.
    AttentionCase c = attention_case(3, 82, 4, 64, false, at::kBFloat16, at::kCUDA);
    c.qkv.narrow(2, 0, 256).fill_(8);
    c.qkv.narrow(2, 256, 256).fill_(-8).narrow(1, 3, 1).fill_(-7);
    expect_good_attention(c, cat("scores far below zero, portable ", portable));
  }
}

TEST(AttentionGpu, EveryElementIsWritten) {
  HRM_NEEDS_GPU();
  const Poisoned poisoned;
  ASSERT_TRUE(at::isnan(at::empty({8}, at::device(at::kCUDA).dtype(at::kBFloat16))).all().item<bool>());
  for (const bool portable : {false, true}) {
    const WithPortable with_portable(portable);
    for (const int64_t length : short_lengths()) {
      const AttentionCase c = attention_case(2, length, 2, 64, true, at::kBFloat16, at::kCUDA);
      const auto [out, lse] = attention_forward(c.qkv, c.heads, c.cos, c.sin);
      const at::Tensor grad = attention_backward(grad_for(c), c.qkv, out, lse, c.heads, c.cos, c.sin);
      EXPECT_TRUE(at::isfinite(out).all().item<bool>()) << length << " portable " << portable;
      EXPECT_TRUE(at::isfinite(lse).all().item<bool>()) << length << " portable " << portable;
      EXPECT_TRUE(at::isfinite(grad).all().item<bool>()) << length << " portable " << portable;
    }
  }
}

// NaN in one sequence or head stays there: nothing is read across, and nothing is left in shared memory.
TEST(AttentionGpu, HeadsAreSeparateLarge) {
  HRM_NEEDS_GPU();
  for (const bool portable : {false, true}) {
    const WithPortable with_portable(portable);
    for (const int64_t length : {33, 65, 82, 97, 113}) {
      const AttentionCase c = attention_case(300, length, 4, 64, true, at::kBFloat16, at::kCUDA);
      const at::Tensor grad_out = grad_for(c);
      const AttentionResult before = run_ours(c, grad_out);
      const auto spoiled_heads = [&](const at::Tensor& rows) {  // one head of each sequence of the first half
        return rows.view({300, length, -1, 4, 64}).narrow(0, 0, 150).select(3, 1);
      };
      spoiled_heads(c.qkv).fill_(NAN);
      const AttentionResult after = run_ours(c, grad_out);
      const auto other_heads = [&](const at::Tensor& rows) {
        const at::Tensor heads = rows.clone();
        spoiled_heads(heads).zero_();
        return heads;
      };
      expect_same_bits(other_heads(after.out), other_heads(before.out), cat("L ", length, " portable ", portable));
      expect_same_bits(other_heads(after.grad), other_heads(before.grad),
                       cat("L ", length, " portable ", portable, ", gradient"));
    }
  }
}

TEST(AttentionGpu, NonContiguousAndMisalignedInputs) {
  HRM_NEEDS_GPU();
  const AttentionCase plain = attention_case(3, 82, 2, 64, true, at::kBFloat16, at::kCUDA);
  const at::Tensor grad_out = grad_for(plain);
  const AttentionResult expected = run_ours(plain, grad_out);
  const auto expect_same = [&](const at::Tensor& qkv, const at::Tensor& grad, const std::string& what) {
    AttentionCase c = plain;
    c.qkv = qkv;
    const AttentionResult result = run_ours(c, grad);
    expect_same_bits(result.out, expected.out, what);
    expect_same_bits(result.grad, expected.grad, what + ", gradient");
  };
  const auto shifted = [](const at::Tensor& tensor) {
    return at::empty({tensor.numel() + 1}, tensor.options()).slice(0, 1).view(tensor.sizes()).copy_(tensor);
  };
  expect_same(plain.qkv.transpose(0, 1).contiguous().transpose(0, 1), grad_out, "strided");
  expect_same(shifted(plain.qkv), grad_out, "misaligned qkv");
  expect_same(plain.qkv, shifted(grad_out), "misaligned gradient");
  expect_same(plain.qkv, grad_out.transpose(0, 2).contiguous().transpose(0, 2), "strided gradient");
  AttentionCase c = plain;
  c.cos = shifted(c.cos);
  expect_same_bits(run_ours(c, grad_out).out, expected.out, "misaligned table");
  // A gradient that arrives expanded (from a sum, say) has stride 0.
  const at::Tensor leaf = plain.qkv.clone().requires_grad_();
  const auto by_sum = torch::autograd::grad({attention(leaf, plain.heads, plain.cos, plain.sin).sum()}, {leaf})[0];
  expect_same_bits(by_sum, run_ours(plain, at::ones_like(grad_out)).grad);
}

// The rotation alone, on both sides of its choice between 16-byte words and elements.
TEST(AttentionGpu, RotationAsGoodAsPlainAten) {
  HRM_NEEDS_GPU();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t head_dim : {2, 6, 8, 16, 64, 128}) {
      const AttentionCase c = attention_case(3, 19, 3, head_dim, true, dtype, at::kCUDA);
      const std::string what = cat(dtype, " head_dim ", head_dim);
      const auto rotate = [&](const at::Tensor& qkv) {
        const at::Tensor to = at::empty_like(qkv);
        reference::rotate_qkv(qkv, to, c.heads, c.cos, c.sin);
        return to;
      };
      const at::Tensor plain = rotate(c.qkv), exact = rotate(c.qkv.to(at::kDouble));
      const at::Tensor ours = rotate_qkv(c.qkv, c.heads, c.cos, c.sin);
      expect_as_good(ours, plain, exact, what);
      const at::Tensor in_place = c.qkv.clone();
      rotate_qkv_(in_place, c.heads, c.cos, c.sin);
      expect_same_bits(in_place, ours, what + ", in place");
      const at::Tensor shifted =
          at::empty({c.qkv.numel() + 1}, c.qkv.options()).slice(0, 1).view(c.qkv.sizes()).copy_(c.qkv);
      expect_same_bits(rotate_qkv(shifted, c.heads, c.cos, c.sin), ours, what + ", misaligned");

      // Gradients as three kinds of kernels leave them: rows of all heads, heads of rows, and any strides.
      const std::vector<int64_t> sizes = {3, c.heads, 19, head_dim};
      const at::Tensor q = normal({3, 19, c.heads, head_dim}, 5, dtype, at::kCUDA).transpose(1, 2);
      const at::Tensor k = normal(sizes, 6, dtype, at::kCUDA);
      const at::Tensor v = normal({head_dim, 19, 3, c.heads}, 7, dtype, at::kCUDA).permute({2, 3, 1, 0});
      const auto wide = [](const at::Tensor& t) { return t.to(at::kDouble); };
      const at::Tensor grad = rotate_qkv_backward(q, k, v, c.cos, c.sin);
      expect_as_good(grad, reference::rotate_qkv_backward(q, k, v, c.cos, c.sin),
                     reference::rotate_qkv_backward(wide(q), wide(k), wide(v), c.cos, c.sin), what + ", gradient");
      expect_same_bits(rotate_qkv_backward(q, k, v, {}, {}), reference::rotate_qkv_backward(q, k, v, {}, {}),
                       what + ", gradient without rotation");
    }
  }
}

TEST(AttentionGpu, MayOverwriteItsInput) {
  HRM_NEEDS_GPU();
  for (const int64_t length : {82, 200}) {
    const AttentionCase c = attention_case(2, length, 2, 64, true, at::kBFloat16, at::kCUDA);
    const at::Tensor grad_out = grad_for(c);
    const AttentionResult expected = run_ours(c, grad_out);
    const AttentionResult in_place = run_attention(
        [&](const at::Tensor& qkv) { return attention_(qkv * 1, c.heads, c.cos, c.sin); }, c.qkv, grad_out);
    expect_same_bits(in_place.out, expected.out, cat("L ", length));
    EXPECT_LE(largest_difference(in_place.grad, expected.grad), 0x1p-7 * expected.grad.abs().max().item<double>());
  }
}

TEST(AttentionGpu, SameBitsEachTimeLarge) {
  HRM_NEEDS_GPU();
  for (const int64_t length : {64, 82, 97, 128}) {
    const AttentionCase c = attention_case(100, length, 8, 64, true, at::kBFloat16, at::kCUDA);
    const at::Tensor grad_out = grad_for(c);
    const auto run = [&] {
      const AttentionResult result = run_ours(c, grad_out);
      return std::vector<at::Tensor>{result.out, result.grad};
    };
    expect_same_each_time(run, 20, cat("L ", length));
  }
}

// What attention_projected() gives and what the two ops do, which take the products that the one kernel takes.
void expect_projected_same(const at::Tensor& h, const at::Tensor& weight, int64_t heads, const AttentionCase& c,
                           const std::string& what) {
  const at::Tensor out = attention_projected(h, weight, heads, c.cos, c.sin);
  const WithTiles with_tiles;
  expect_same_bits(
      out, attention(linear(h.contiguous(), weight.contiguous(), weight.contiguous()), heads, c.cos, c.sin), what);
}

// Batches that fill the multiprocessors, by whole samples or by shares of their heads; the last block of one cluster
// without a sample; heads that cannot be halved.
TEST(AttentionGpu, ProjectedAsTheTwoLarge) {
  HRM_NEEDS_GPU();
  if (!cuda::sm90::is_hopper()) GTEST_SKIP() << "needs a Hopper GPU and a build for it";
  const at::NoGradGuard no_grad;
  const int64_t processors = cuda::sm90::multiprocessors();
  struct Case {
    int64_t batch, length, heads;
  };
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    for (const auto& [batch, length, heads] :
         {Case{processors, 82, 8}, Case{processors - 1, 88, 8}, Case{2 * processors, 65, 8},
          Case{3 * processors - 3, 82, 8}, Case{2 * processors, 97, 8}, Case{processors, 104, 8},
          Case{processors / 2 - 2, 82, 8}, Case{processors * 3 / 2 - 3, 97, 8}, Case{processors * 3 / 4 - 3, 82, 8},
          Case{8 * processors, 82, 1}, Case{3 * processors, 97, 3}, Case{processors, 82, 12}}) {
      for (const bool rotated : {true, false}) {
        const AttentionCase c = attention_case(1, length, heads, 64, rotated, dtype, at::kCUDA);
        const at::Tensor h = normal({batch, length, 512}, 1, dtype, at::kCUDA);
        const at::Tensor weight = normal({192 * heads, 512}, 2, dtype, at::kCUDA) * 0.05;
        const std::string what =
            cat(dtype, " batch ", batch, " L ", length, " heads ", heads, rotated ? " rotated" : "");
        // The batches were chosen for 132 multiprocessors; a whole round pays on any device.
        if (processors == 132 || batch % processors == 0) {
          ASSERT_TRUE(
              attention_projected_by_kernel(h, weight, heads, optional_tensor(c.cos), optional_tensor(c.sin)).defined())
              << what;
        }
        expect_projected_same(h, weight, heads, c, what);
      }
    }
  }
}

// Through the two ops: too few samples, other sizes and types, and what is not as the kernel wants it.
TEST(AttentionGpu, ProjectedWhereTheKernelDoesNotFit) {
  HRM_NEEDS_GPU();
  const at::NoGradGuard no_grad;
  const int64_t processors = at::cuda::getCurrentDeviceProperties()->multiProcessorCount;
  struct Case {
    int64_t batch, length, width;
    at::ScalarType dtype;
  };
  for (const auto& [batch, length, width, dtype] :
       {Case{1, 82, 512, at::kBFloat16}, Case{processors, 64, 512, at::kBFloat16},
        Case{processors, 105, 512, at::kBFloat16}, Case{processors, 82, 256, at::kBFloat16},
        Case{processors, 82, 512, at::kFloat}, Case{0, 82, 512, at::kBFloat16}}) {
    const std::string what = cat(dtype, " batch ", batch, " L ", length, " D ", width);
    const AttentionCase c = attention_case(1, length, 8, 64, true, dtype, at::kCUDA);
    const at::Tensor h = normal({batch, length, width}, 1, dtype, at::kCUDA);
    const at::Tensor weight = normal({1536, width}, 2, dtype, at::kCUDA) * 0.05;
    EXPECT_FALSE(attention_projected_by_kernel(h, weight, 8, optional_tensor(c.cos), optional_tensor(c.sin)).defined())
        << what;
    const at::Tensor out = attention_projected(h, weight, 8, c.cos, c.sin);
    expect_same_bits(out, attention(linear(h, weight, weight), 8, c.cos, c.sin), what);
  }
  const AttentionCase c = attention_case(1, 82, 8, 64, true, at::kBFloat16, at::kCUDA);
  const at::Tensor h = normal({processors, 82, 512}, 1, at::kBFloat16, at::kCUDA);
  const at::Tensor weight = normal({1536, 512}, 2, at::kBFloat16, at::kCUDA) * 0.05;
  const at::Tensor moved = at::cat({h.new_zeros({1}), h.flatten()}).slice(0, 1).view(h.sizes());
  const at::Tensor strided = h.transpose(0, 1).contiguous().transpose(0, 1);
  expect_projected_same(moved, weight, 8, c, "misaligned");
  expect_projected_same(strided, weight, 8, c, "strided");
  expect_projected_same(h, weight.t().contiguous().t(), 8, c, "weight strided");
  const WithReference with_reference;
  expect_same_bits(attention_projected(h, weight, 8, c.cos, c.sin),
                   attention(linear(h, weight, weight), 8, c.cos, c.sin), "reference backend");
}

// Kernels may begin before the ones queued earlier are done, so they wait before they read. The products of
// linear_swiglu let the next kernel begin at once; the memory that they write is what was NaN just before.
TEST(AttentionGpu, WaitsForTheKernelBeforeLarge) {
  HRM_NEEDS_GPU();
  const at::NoGradGuard no_grad;
  const AttentionCase c = attention_case(1, 82, 8, 64, true, at::kBFloat16, at::kCUDA);
  const at::Tensor x = normal({384, 82, 512}, 1, at::kBFloat16, at::kCUDA);
  const at::Tensor to_qkv = normal({2 * 1536, 512}, 2, at::kBFloat16, at::kCUDA).mul_(0.06);
  const at::Tensor to_grad = normal({2 * 512, 512}, 3, at::kBFloat16, at::kCUDA).mul_(0.06);
  const at::Tensor qkv = linear_swiglu(x, to_qkv), grad_out = linear_swiglu(x, to_grad);
  at::cuda::device_synchronize();
  const auto [out, lse] = attention_forward(qkv, c.heads, c.cos, c.sin);
  at::cuda::device_synchronize();
  const at::Tensor grad = attention_backward(grad_out, qkv, out, lse, c.heads, c.cos, c.sin);
  const auto poison = [](const at::Tensor& like) {
    at::full_like(like, std::nan(""));
    at::cuda::device_synchronize();
  };
  for (int i = 0; i < 20; ++i) {
    poison(qkv);
    expect_same_bits(attention(linear_swiglu(x, to_qkv), c.heads, c.cos, c.sin), out, cat("round ", i));
    poison(grad_out);
    expect_same_bits(attention_backward(linear_swiglu(x, to_grad), qkv, out, lse, c.heads, c.cos, c.sin), grad,
                     cat("gradient, round ", i));
  }
}

TEST(AttentionGpu, InsideACapturedGraph) {
  HRM_NEEDS_GPU();
  for (const int64_t length : {82, 200}) {
    const AttentionCase c = attention_case(4, length, 2, 64, true, at::kBFloat16, at::kCUDA);
    const at::Tensor qkv = c.qkv.requires_grad_();
    const at::Tensor grad_out = grad_for(c);
    at::Tensor out, grad;
    Captured captured([&] {
      out = attention(qkv, c.heads, c.cos, c.sin);
      grad = torch::autograd::grad({out}, {qkv}, {grad_out})[0];
    });
    for (uint64_t round = 0; round < 4; ++round) {
      {
        const at::NoGradGuard no_grad;
        qkv.copy_(normal(qkv.sizes(), 10 + round, at::kBFloat16));
        grad_out.copy_(normal(grad_out.sizes(), 20 + round, at::kBFloat16));
      }
      captured.replay();
      const AttentionResult eager = run_ours(c, grad_out);
      expect_same_bits(out.detach(), eager.out, cat("L ", length, " round ", round));
      if (length <= 128) {
        expect_same_bits(grad, eager.grad, cat("L ", length, " round ", round, ", gradient"));
      } else {  // ATen's backward kernels add with atomics
        EXPECT_LE(largest_difference(grad, eager.grad), 0x1p-7 * eager.grad.abs().max().item<double>());
      }
    }
  }
}

TEST(AttentionGpu, BadInputIsNamed) {
  HRM_NEEDS_GPU();
  const at::Tensor qkv = at::zeros({2, 5, 384}, at::device(at::kCUDA).dtype(at::kBFloat16));
  const at::Tensor table = at::zeros({5, 32});
  expect_message(error_of([&] { attention(qkv, 2, table, table); }), {"hrm::attention", "cuda", "cpu", "[2, 5, 384]"});
  expect_message(error_of([&] { attention(qkv, 5, {}, {}); }), {"hrm::attention", "[2, 5, 384]", "5 heads"});
}

}  // namespace
}  // namespace hrm::ops
