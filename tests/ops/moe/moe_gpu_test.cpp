#include "hrm/ops/linear_swiglu.h"
#include "ops/cuda/sm90/tensor_map.h"
#include "ops/gpu_testing.h"
#include "ops/linear/linear_swiglu_impl.h"
#include "ops/moe/moe_cases.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

TEST(MoeGpu, AsGoodAsOneExpertAfterTheOther) {
  HRM_NEEDS_GPU();
  const WithoutTf32 exact;
  for (const ExpertActivation activation : kActivations) {
    for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kFloat}) {
      const auto check = [&](int64_t tokens, int64_t dim, int64_t width, int64_t experts, int64_t top_k,
                             bool normalize = false) {
        expect_good_moe(
            make_moe(tokens, dim, width, experts, top_k, dtype, at::kCUDA, activation),
            cat(dtype, " ", name_of(activation), " T", tokens, " D", dim, " F", width, " E", experts, " K", top_k),
            normalize);
      };
      // The products of our own: widths of 256. The second gives a block several tiles.
      check(300, 256, 512, 4, 2);
      check(1000, 512, 256, 7, 1);
      check(129, 256, 256, 64, 8, true);
      check(1, 256, 256, 3, 1);
      check(2100, 256, 768, 5, 5);
      // Only some of them fit: of the gates and ups, of no product with D.
      check(333, 320, 128, 5, 2);
      check(211, 192, 320, 3, 3);
      // The portable ones, also of odd sizes.
      check(77, 40, 72, 5, 2);
      check(20, 13, 9, 3, 2);
    }
  }
}

TEST(MoeGpu, SameWithoutGradients) {
  HRM_NEEDS_GPU();
  const WithoutTf32 exact;
  for (const ExpertActivation activation : kActivations) {
    for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
      for (const int64_t dim : {24, 256, 512}) {
        expect_same_without_gradients(make_moe(700, dim, 2 * dim, 6, 2, dtype, at::kCUDA, activation));
      }
    }
  }
}

TEST(MoeGpu, SwigluIsThatOfOneWeight) {
  HRM_NEEDS_GPU();
  if (!cuda::sm90::is_hopper()) GTEST_SKIP() << "needs a Hopper GPU and a build for it";
  // With one expert that every token picks, the kernels for groups must give the bits of ops::linear_swiglu.
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    const at::Tensor x = normal({384, 512}, 1, dtype, at::kCUDA);
    const at::Tensor weight = (normal({2 * 768, 512}, 2, at::kFloat, at::kCUDA) / 22).to(dtype);
    const at::Tensor down = (normal({512, 768}, 3, at::kFloat, at::kCUDA) / 27).to(dtype);
    const MoePlan plan = moe_plan(at::zeros({384, 1}, at::device(at::kCUDA).dtype(at::kInt)), 1);
    const auto [act, kept] = moe_up_swiglu(x, weight.unsqueeze(0), plan.tile_experts, plan.starts, true);
    const auto [want_act, want_kept] = linear_swiglu_forward(x, weight);
    expect_same_bits(act, want_act.view(act.sizes()), "act");
    expect_same_bits(kept, want_kept.view(kept.sizes()), "gates and ups");
    const auto alone = moe_up_swiglu(x, weight.unsqueeze(0), plan.tile_experts, plan.starts, false);
    expect_same_bits(std::get<0>(alone), want_act.view(act.sizes()), "act alone");
    expect_same_bits(moe_up_swiglu_backward(x, down.unsqueeze(0), kept, plan.tile_experts, plan.starts),
                     linear_swiglu_backward(x, down, want_kept).view(kept.sizes()), "gradient");
  }
}

// The portable gradient, also where a better kernel would fit, against products in float64; and with TF32.
TEST(MoeGpu, PortableGradients) {
  HRM_NEEDS_GPU();
  struct Sizes {
    int64_t tokens, m, n, experts, top_k;
  };
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kFloat}) {
    for (const bool tf32 : {false, true}) {
      if (tf32 && dtype != at::kFloat) continue;
      const WithoutTf32 restored;
      if (tf32) at::globalContext().setFloat32MatmulPrecision("high");
      for (const Sizes& s : {Sizes{700, 256, 512, 6, 2}, Sizes{77, 40, 72, 5, 2}, Sizes{500, 136, 264, 4, 1},
                             Sizes{20, 13, 9, 3, 2}, Sizes{1, 1, 1, 1, 1}, Sizes{900, 129, 127, 3, 3}}) {
        at::Tensor logits = normal({s.tokens, s.experts}, 9, at::kFloat, at::kCUDA);
        if (s.experts > s.top_k) logits.select(1, 0).sub_(100);  // an expert without tokens
        const MoePlan plan = moe_plan(moe_gate(logits, s.top_k, MoeScore::softmax, false).ids, s.experts);
        const at::Tensor none = plan.picks.lt(0).unsqueeze(1);
        const auto rows = [&](int64_t width, uint64_t seed) {
          return normal({none.size(0), width}, seed, dtype, at::kCUDA).masked_fill_(none, 0);
        };
        const at::Tensor a = rows(s.m, 1), b = rows(s.n, 2);
        const std::string what = cat(dtype, tf32 ? " tf32" : "", " M", s.m, " N", s.n, " E", s.experts);
        for (const bool overwrite : {false, true}) {
          at::Tensor grad = at::full({s.experts, s.m, s.n}, overwrite ? NAN : 0.5, at::device(at::kCUDA));
          moe_accumulate_portable_(grad, a, b, plan.tile_experts, plan.starts, overwrite);
          at::Tensor want = at::full({s.experts, s.m, s.n}, overwrite ? 0.0 : 0.5, grad.options().dtype(at::kDouble));
          composed::moe_accumulate_(want, a.to(at::kDouble), b.to(at::kDouble), plan.tile_experts, plan.starts, false);
          const double scale = std::sqrt(static_cast<double>(s.tokens));
          EXPECT_LE(largest_difference(grad, want), (tf32 ? 1e-2 : 2e-5) * scale) << what << " " << overwrite;
        }
      }
    }
  }
}

// The portable product, also where a better kernel would fit, against one in float64; and with TF32.
TEST(MoeGpu, PortableProducts) {
  HRM_NEEDS_GPU();
  struct Sizes {
    int64_t tokens, inner, width, experts, top_k;
  };
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kFloat}) {
    for (const bool tf32 : {false, true}) {
      if (tf32 && dtype != at::kFloat) continue;
      const WithoutTf32 restored;
      if (tf32) at::globalContext().setFloat32MatmulPrecision("high");
      for (const Sizes& s : {Sizes{700, 256, 512, 6, 2}, Sizes{77, 40, 72, 5, 2}, Sizes{500, 136, 264, 4, 1},
                             Sizes{20, 13, 9, 3, 2}, Sizes{1, 1, 1, 1, 1}, Sizes{900, 129, 127, 3, 3}}) {
        at::Tensor logits = normal({s.tokens, s.experts}, 9, at::kFloat, at::kCUDA);
        if (s.experts > s.top_k) logits.select(1, 0).sub_(100);  // an expert without tokens
        const MoePlan plan = moe_plan(moe_gate(logits, s.top_k, MoeScore::softmax, false).ids, s.experts);
        const at::Tensor rows = normal({plan.picks.size(0), s.inner}, 1, dtype, at::kCUDA);
        const int64_t used = plan.starts[s.experts].item<int64_t>();
        for (const bool transposed : {false, true}) {
          const at::Tensor weight = normal(transposed ? std::vector<int64_t>{s.experts, s.inner, s.width}
                                                      : std::vector<int64_t>{s.experts, s.width, s.inner},
                                           2, dtype, at::kCUDA);
          const at::Tensor out = moe_linear_portable(rows, weight, plan.tile_experts, plan.starts, transposed);
          const at::Tensor want = composed::moe_linear(rows.to(at::kDouble), weight.to(at::kDouble), plan.tile_experts,
                                                       plan.starts, transposed, /*may_group=*/false);
          ASSERT_EQ(out.sizes(), want.sizes());
          const at::Tensor error = (out.to(at::kDouble) - want).narrow(0, 0, used).abs();
          // A rounding of the result, and those of the float32 sum.
          const double rounding = tf32 ? 0x1p-10 : dtype == at::kFloat ? 0x1p-22 : unit_roundoff(dtype);
          const at::Tensor bound =
              want.narrow(0, 0, used).abs() * rounding + std::sqrt(static_cast<double>(s.inner)) * (tf32 ? 4e-3 : 2e-5);
          EXPECT_TRUE(error.le(bound).all().item<bool>())
              << dtype << (tf32 ? " tf32" : "") << " K" << s.inner << " N" << s.width << " transposed " << transposed
              << ": " << describe_element(out, want, error.argmax().item<int64_t>());
        }
      }
    }
  }
}

TEST(MoeGpu, EmptyAndCrowdedExperts) {
  HRM_NEEDS_GPU();
  for (const ExpertActivation activation : kActivations) {
    for (const int64_t dim : {256, 72}) {
      MoeCase c = make_moe(500, dim, dim, 5, 2, at::kBFloat16, at::kCUDA, activation);
      empty_expert(c, 0);
      empty_expert(c, 3);
      expect_good_moe(c, cat("two experts without tokens, ", name_of(activation)));
      c.top_k = 1;
      steer(c, 4);
      expect_good_moe(c, cat("all tokens to the last, ", name_of(activation)));
    }
  }
}

TEST(MoeGpu, Plans) {
  HRM_NEEDS_GPU();
  for (const int64_t experts : {1, 3, 64, 1000}) {
    for (const int64_t tokens : {1, 100, 700, 20000}) {
      at::Generator generator = at::detail::createCPUGenerator();
      generator.set_current_seed(static_cast<uint64_t>(tokens));
      expect_good_plan(at::randint(-1, experts, {tokens, 2}, generator, at::kInt).cuda(), experts);
    }
  }
  expect_good_plan(at::full({5, 2}, -1, at::kInt).cuda(), 4);
}

TEST(MoeGpu, Gates) {
  HRM_NEEDS_GPU();
  expect_good_gates(at::kCUDA);
}

TEST(MoeGpu, Jitter) {
  HRM_NEEDS_GPU();
  expect_good_jitter(at::kCUDA);
}

TEST(MoeGpu, LoadLoss) {
  HRM_NEEDS_GPU();
  expect_good_load_loss(at::kCUDA);
}

TEST(MoeGpu, StaleGradientsAreOverwritten) {
  HRM_NEEDS_GPU();
  for (const ExpertActivation activation : kActivations) {
    for (const int64_t dim : {13, 24, 128, 256, 320}) {
      expect_stale_overwritten(at::kCUDA, at::kBFloat16, dim, activation);
    }
    expect_stale_overwritten(at::kCUDA, at::kHalf, 256, activation);
    expect_stale_overwritten(at::kCUDA, at::kFloat, 24, activation);
  }
}

TEST(MoeGpu, Loads) {
  HRM_NEEDS_GPU();
  expect_good_loads(at::kCUDA);
  const auto counts = make_loads(3, 64, 5, at::kCUDA);
  at::Tensor loads;
  Captured captured([&] { loads = loads_of(counts); });
  for (uint64_t round = 0; round < 3; ++round) {
    const auto now = make_loads(3, 64, 100 + 10 * round, at::kCUDA);
    for (size_t layer = 0; layer < now.size(); ++layer) counts[layer].copy_(now[layer]);
    captured.replay();
    expect_same_bits(loads, loads_of(now), cat("round ", round));
  }
}

TEST(MoeGpu, SameEachTime) {
  HRM_NEEDS_GPU();
  for (const ExpertActivation activation : kActivations) {
    for (const int64_t dim : {512, 136}) {
      const MoeCase c = make_moe(2000, dim, dim, 8, 2, at::kBFloat16, at::kCUDA, activation);
      expect_same_each_time(
          [&] {
            const MoeResult r = run_moe(c);
            return std::vector<at::Tensor>{r.out, r.grad_x, r.grad_logits, r.grad_up, r.grad_down};
          },
          10, cat("moe ", name_of(activation), " ", dim));
    }
  }
}

// How many tokens an expert gets changes from replay to replay.
void expect_same_in_a_graph(const MoeCase& c) {
  MoeCase input = c;
  input.logits = c.logits.clone();
  MoeResult result;
  Captured captured([&] { result = run_moe(input); });
  for (int i = 0; i < 4; ++i) {
    MoeCase now = c;
    now.logits = normal(c.logits.sizes(), 40 + static_cast<uint64_t>(i), at::kFloat, at::kCUDA);
    if (i == 2) steer(now, 1);
    input.logits.copy_(now.logits);
    captured.replay();
    const MoeResult eager = run_moe(now);
    const std::string what = cat(name_of(c.activation), ", width ", c.x.size(1), ", ");
    expect_same_bits(result.out, eager.out, what + "out");
    expect_same_bits(result.grad_x, eager.grad_x, what + "gradient of x");
    expect_same_bits(result.grad_logits, eager.grad_logits, what + "gradient of the logits");
    expect_same_bits(result.grad_up, eager.grad_up, what + "gradient of up");
    expect_same_bits(result.grad_down, eager.grad_down, what + "gradient of down");
  }
}

TEST(MoeGpu, InAGraph) {
  HRM_NEEDS_GPU();
  for (const ExpertActivation activation : kActivations) {
    for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
      expect_same_in_a_graph(make_moe(700, 256, 512, 6, 2, dtype, at::kCUDA, activation));
      expect_same_in_a_graph(make_moe(333, 72, 40, 6, 2, dtype, at::kCUDA, activation));
    }
    expect_same_in_a_graph(make_moe(100, 33, 17, 6, 2, at::kFloat, at::kCUDA, activation));
  }
}

TEST(MoeGpu, Router) {
  HRM_NEEDS_GPU();
  const at::Tensor x = normal({90, 64}, 1, at::kBFloat16, at::kCUDA);
  const at::Tensor weight = normal({4, 64}, 2, at::kBFloat16, at::kCUDA), master = weight.to(at::kFloat);
  const at::Tensor logits = moe_router(x, weight, master);
  EXPECT_EQ(logits.scalar_type(), at::kFloat);
  EXPECT_LE(largest_difference(logits, x.to(at::kDouble).mm(weight.to(at::kDouble).t())), 1e-4);
}

TEST(MoeGpu, DroppedPicksLarge) {
  HRM_NEEDS_GPU();
  for (const ExpertActivation activation : kActivations) {
    const MoeCase c = make_moe(4096, 1024, 1024, 16, 2, at::kBFloat16, at::kCUDA, activation);
    const MoeGate gate = moe_gate(c.logits, 2, MoeScore::softmax, false);
    const at::Tensor kept = moe_drop(gate.ids, gate.weights, 16, 480);
    EXPECT_GT(kept.lt(0).sum().item<int64_t>(), 0);
    const at::Tensor out = moe_experts(c.x, gate.weights, moe_plan(kept, 16), c.up, c.up, c.down, c.down, activation);
    expect_near(out, reference::moe_experts(c.x, gate.weights, kept, c.up, c.down, activation), "out");
  }
}

// Weights with more than sixteen slices, whose tiles are worked on in bands: full ones, one that ends with the rows,
// and experts that share one.
TEST(MoeGpu, WideExperts) {
  HRM_NEEDS_GPU();
  for (const ExpertActivation activation : kActivations) {
    for (const int64_t tokens : {1, 130, 1500}) {
      const MoeCase c = make_moe(tokens, 256, 4608, 3, 2, at::kBFloat16, at::kCUDA, activation);
      expect_good_moe(c, cat("wide, T", tokens, " ", name_of(activation)));
    }
  }
}

// The widths of Qwen3-30B-A3B, with fewer experts and tokens: all products are tiles on a Hopper GPU.
TEST(MoeGpu, WidthsOfALargeModel) {
  HRM_NEEDS_GPU();
  const MoeCase c = make_moe(1000, 2048, 768, 32, 8, at::kBFloat16, at::kCUDA, ExpertActivation::swiglu);
  EXPECT_EQ(moe_experts_way(at::kCUDA, at::kBFloat16, 2048, 768),
            cuda::sm90::is_hopper() ? "tiles of a Hopper GPU" : "portable kernels");
  expect_good_moe(c, "32 experts", /*normalize=*/true);
}

}  // namespace
}  // namespace hrm::ops
