#include "ops/attention/masked_attention_cases.h"

namespace hrm::ops {
namespace {

using namespace testing;

TEST(MaskedAttention, AgainstFloat64) {
  for (const MaskedCase& c : masked_cases()) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
      expect_good_masked(c, dtype, at::kCPU);
    }
  }
}

// The mask itself, position by position; a number that comes again is another document.
TEST(MaskedAttention, PlainMask) {
  const at::Tensor documents = at::tensor({0, 0, 0, 1, 1, 0}, at::kInt).view({1, 6});
  const int64_t begins[] = {0, 0, 0, 3, 3, 5};
  for (const int64_t window : {0, 2}) {
    const at::Tensor plain = reference::causal_mask(6, attention_spans({}, 0, window), at::kCPU);
    const at::Tensor mask = reference::causal_mask(6, attention_spans(documents, 0, window), at::kCPU);
    ASSERT_EQ(mask.sizes(), at::IntArrayRef({1, 1, 6, 6}));
    for (int64_t i = 0; i < 6; ++i) {
      for (int64_t j = 0; j < 6; ++j) {
        const bool causal = j <= i && (window == 0 || i - j < window);
        EXPECT_EQ(plain[i][j].item<bool>(), causal) << i << " " << j;
        EXPECT_EQ(mask[0][0][i][j].item<bool>(), causal && j >= begins[i]) << window << " " << i << " " << j;
      }
    }
  }
}

TEST(MaskedAttention, Spans) {
  const at::Tensor documents = at::tensor({0, 0, 1, 2, 2, 2, 7, 7, 7, 7, 0, 1}, at::kInt).view({2, 6});
  for (const at::Tensor& ids : {documents, documents.to(at::kLong)}) {
    const AttentionSpans spans = attention_spans(ids, 3, 5);
    expect_same_bits(spans.starts, at::tensor({0, 0, 2, 3, 3, 3, 0, 0, 0, 0, 4, 5}, at::kInt).view({2, 6}));
    EXPECT_EQ(spans.starts.scalar_type(), at::kInt);
    EXPECT_FALSE(spans.offsets.defined()) << "a CPU needs none";
    EXPECT_TRUE(spans.limit(1));
  }
  const AttentionSpans window = attention_spans({}, 0, 5);
  EXPECT_TRUE(window.limit(6));
  EXPECT_FALSE(window.limit(5));
  EXPECT_FALSE(attention_spans({}, 0, 0).limit(1 << 20));
}

// Positions that are hidden change nothing, and get no gradient.
TEST(MaskedAttention, HiddenPositionsDoNotMatter) {
  const MaskedInputs in =
      masked_inputs({.rows = 1, .positions = 300, .window = 20, .documents = {130, 170}}, at::kFloat, at::kCPU);
  const at::Tensor want = in.run().narrow(1, 290, 10);
  for (const at::Tensor& t : {in.q, in.k, in.v}) t.narrow(1, 0, 271).mul_(3);
  expect_same_bits(in.run().narrow(1, 290, 10), want);
  std::vector<at::Tensor> leaf = as_leaves(in.leaves(), at::kFloat);
  const at::Tensor out = masked_attention(leaf[0], leaf[1], leaf[2], in.spans);
  const auto grads = torch::autograd::grad({out.narrow(1, 290, 10).sum()}, leaf);
  EXPECT_EQ(grads[1].narrow(1, 0, 271).abs().max().item<double>(), 0);
  EXPECT_GT(grads[1].narrow(1, 271, 1).abs().max().item<double>(), 0);
}

TEST(MaskedAttention, PlainMaskByChoice) {
  const MaskedInputs in = masked_inputs({.window = 9, .documents = {25}}, at::kFloat, at::kCPU);
  const at::Tensor plain = reference::masked_attention(in.q, in.k, in.v, in.spans);
  const AttentionBackend before = attention_backend();
  set_attention_backend(AttentionBackend::sdpa);
  const at::Tensor by_choice = in.run();
  set_attention_backend(before);
  expect_same_bits(by_choice, plain);
  const WithReference reference;
  expect_same_bits(in.run(), plain);
}

TEST(MaskedAttention, SameEachTime) {
  const MaskedInputs in = masked_inputs({.positions = 300, .window = 40, .documents = {25, 170}}, at::kFloat, at::kCPU);
  const MaskedForward first = masked_attention_forward(in.q, in.k, in.v, in.spans);
  const auto [q, k, v] = masked_attention_backward(in.grad, in.q, in.k, in.v, first, in.spans);
  const MaskedForward second = masked_attention_forward(in.q, in.k, in.v, in.spans);
  const auto [q2, k2, v2] = masked_attention_backward(in.grad, in.q, in.k, in.v, second, in.spans);
  expect_same_bits(first.out, second.out);
  expect_same_bits(q, q2);
  expect_same_bits(k, k2);
  expect_same_bits(v, v2);
}

TEST(MaskedAttention, RefusesWrongInput) {
  const MaskedInputs good = masked_inputs({.window = 3, .documents = {8}}, at::kFloat, at::kCPU);
  const auto refused = [&](const std::function<void(MaskedInputs&)>& spoil, const std::vector<std::string>& parts) {
    MaskedInputs in = good;
    spoil(in);
    expect_message(error_of([&] { in.run(); }), parts);
  };
  refused([](MaskedInputs& in) { in.q = in.q.narrow(2, 0, 3); },
          {"hrm::masked_attention", "divides", "[2, 40, 3, 16]"});
  refused([](MaskedInputs& in) { in.k = in.k.narrow(1, 0, 39); }, {"hrm::masked_attention", "[2, 39, 2, 16]"});
  refused([](MaskedInputs& in) { in.v = in.v.to(at::kDouble); }, {"one floating-point dtype", "Double"});
  refused([](MaskedInputs& in) { in.spans.window = -1; }, {"window of -1"});
  refused([](MaskedInputs& in) { in.spans.starts = in.spans.starts.narrow(1, 0, 9); }, {"starts", "[2, 9]"});
  refused([](MaskedInputs& in) { in.spans.offsets = at::zeros({3, 9}, at::kInt); }, {"offsets", "[3, 9]"});
  expect_message(error_of([] { attention_spans(at::zeros({4}, at::kInt), 0, 0); }), {"hrm::attention_spans", "[4]"});
}

}  // namespace
}  // namespace hrm::ops
