#include <c10/cuda/CUDACachingAllocator.h>

#include "ops/attention/masked_attention_cases.h"
#include "ops/gpu_testing.h"

namespace hrm::ops {
namespace {

using namespace testing;

// Beside the cases of the CPU, what LibTorch's kernels take in ways of their own.
std::vector<MaskedCase> gpu_cases() {
  std::vector<MaskedCase> cases = masked_cases();
  cases.insert(cases.end(),
               {{.rows = 2, .positions = 1500, .heads = 6, .kv_heads = 3, .head_dim = 64, .window = 256},
                {.rows = 2, .positions = 1500, .heads = 6, .kv_heads = 3, .head_dim = 64, .documents = {512, 77, 1}},
                {.rows = 2,
                 .positions = 1031,
                 .heads = 4,
                 .kv_heads = 1,
                 .head_dim = 128,
                 .window = 129,
                 .documents = {700, 3, 200}},
                {.rows = 1, .positions = 300, .heads = 2, .kv_heads = 2, .head_dim = 192, .window = 31},
                {.rows = 1, .positions = 300, .heads = 2, .kv_heads = 2, .head_dim = 256, .documents = {131}},
                {.rows = 1, .positions = 300, .heads = 2, .kv_heads = 2, .head_dim = 264, .documents = {131}}});
  return cases;
}

TEST(MaskedAttentionGpu, AgainstFloat64) {
  HRM_NEEDS_GPU();
  const WithoutTf32 exact;
  for (const MaskedCase& c : gpu_cases()) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
      expect_good_masked(c, dtype, at::kCUDA);
    }
  }
}

TEST(MaskedAttentionGpu, Spans) {
  HRM_NEEDS_GPU();
  const at::Tensor documents = at::tensor({0, 0, 1, 2, 2, 2, 7, 7, 7, 7, 0, 1}, at::kInt).view({2, 6}).to(at::kCUDA);
  const AttentionSpans spans = attention_spans(documents, 4, 0);
  expect_same_bits(spans.starts.cpu(), at::tensor({0, 0, 2, 3, 3, 3, 0, 0, 0, 0, 4, 5}, at::kInt).view({2, 6}));
  expect_same_bits(spans.offsets.cpu(), at::tensor({0, 2, 3, 6, 10, 11, 12, 12, 12}, at::kInt).view({1, 9}));
  EXPECT_EQ(attention_spans(documents, 0, 0).offsets.sizes(), at::IntArrayRef({1, 13})) << "each position one";
}

// More documents than a grid has room for: rows go in parts.
TEST(MaskedAttentionGpu, LargeNumberOfDocuments) {
  HRM_NEEDS_GPU();
  const MaskedCase c{
      .rows = 4, .positions = 20000, .heads = 2, .kv_heads = 1, .head_dim = 32, .documents = {900, 1, 7}};
  const MaskedInputs known = masked_inputs(c, at::kBFloat16, at::kCUDA);
  MaskedInputs unknown = known;
  unknown.spans = attention_spans(known.documents, 0, 0);
  EXPECT_EQ(known.spans.offsets.size(0), 1);
  EXPECT_EQ(unknown.spans.offsets.sizes(), at::IntArrayRef({2, 40001}));
  expect_same_bits(unknown.run(), known.run());
  const auto gradients = [](const MaskedInputs& in) {
    const MaskedForward forward = masked_attention_forward(in.q, in.k, in.v, in.spans);
    return masked_attention_backward(in.grad, in.q, in.k, in.v, forward, in.spans);
  };
  const auto [q, k, v] = gradients(known);
  const auto [q2, k2, v2] = gradients(unknown);
  expect_near(q2, q, "q");  // LibTorch adds up the parts of this one in any order
  expect_same_bits(k2, k, "k");
  expect_same_bits(v2, v, "v");
}

TEST(MaskedAttentionGpu, Captured) {
  HRM_NEEDS_GPU();
  for (const MaskedCase& c :
       {MaskedCase{.rows = 2, .positions = 300, .head_dim = 64, .window = 40},
        MaskedCase{.rows = 2, .positions = 300, .head_dim = 64, .documents = {70, 1, 30}, .unused = 5},
        MaskedCase{.rows = 2, .positions = 300, .head_dim = 5, .window = 40, .documents = {70, 1, 30}, .unused = 5}}) {
    const std::string what = name_of(c, at::kBFloat16);
    const MaskedInputs in = masked_inputs(c, at::kBFloat16, at::kCUDA);
    int64_t most = 0;
    for (int64_t row = 0; in.documents.defined() && row < c.rows; ++row) {
      most = std::max(most, in.documents[row].max().item<int64_t>() + 6);
    }
    const auto work = [&] {
      const AttentionSpans spans = attention_spans(in.documents, most, c.window);
      const MaskedForward forward = masked_attention_forward(in.q, in.k, in.v, spans);
      const auto [q, k, v] = masked_attention_backward(in.grad, in.q, in.k, in.v, forward, spans);
      return std::vector<at::Tensor>{forward.out, k, v, q};
    };
    std::vector<at::Tensor> kept;
    for (const at::Tensor& t : work()) kept.push_back(at::empty_like(t));
    Captured captured([&] {
      const std::vector<at::Tensor> results = work();
      for (size_t i = 0; i < kept.size(); ++i) kept[i].copy_(results[i]);
    });
    for (uint64_t round = 0; round < 3; ++round) {
      in.q.copy_(normal(in.q.sizes(), 70 + round, at::kBFloat16, at::kCUDA));
      if (in.documents.defined()) in.documents.copy_(in.documents.roll(1, 0));  // other documents in each row
      const std::vector<at::Tensor> want = work();
      captured.replay();
      for (size_t i = 0; i < 3; ++i) expect_same_bits(kept[i], want[i], cat(what, ", result ", i));
      expect_near(kept[3], want[3], what + ", gradient of q");
    }
  }
}

// Nothing of T x T, not even as bits.
TEST(MaskedAttentionGpu, LargeRowsNeedLittleMemory) {
  HRM_NEEDS_GPU();
  constexpr int64_t T = 32768;
  for (const MaskedCase& c :
       {MaskedCase{.rows = 1, .positions = T, .heads = 2, .kv_heads = 1, .head_dim = 64, .window = 64},
        MaskedCase{.rows = 1, .positions = T, .heads = 2, .kv_heads = 1, .head_dim = 64, .documents = {500}}}) {
    const MaskedInputs in = masked_inputs(c, at::kBFloat16, at::kCUDA);
    const auto device = static_cast<c10::DeviceIndex>(in.q.get_device());
    at::cuda::device_synchronize();
    namespace allocator = c10::cuda::CUDACachingAllocator;
    allocator::resetPeakStats(device);
    const int64_t before = allocator::getDeviceStats(device).allocated_bytes[0].current;
    const AttentionSpans spans = attention_spans(in.documents, 70, c.window);
    const MaskedForward forward = masked_attention_forward(in.q, in.k, in.v, spans);
    masked_attention_backward(in.grad, in.q, in.k, in.v, forward, spans);
    const int64_t peak = allocator::getDeviceStats(device).allocated_bytes[0].peak - before;
    EXPECT_LT(peak, T * T / 8) << name_of(c, at::kBFloat16);
  }
}

}  // namespace
}  // namespace hrm::ops
