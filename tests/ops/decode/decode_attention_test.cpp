#include "ops/decode/decode_attention_cases.h"

namespace hrm::ops {
namespace {

using namespace testing;

TEST(DecodeAttention, AgainstFloat64) {
  for (const DecodeCase& c : decode_cases()) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble}) expect_good_decode(c, dtype, at::kCPU);
  }
}

TEST(DecodeAttention, Views) {
  expect_views_to_do(at::kFloat, at::kCPU);
}

TEST(DecodeAttention, Ring) {
  expect_ring_to_do(at::kFloat, at::kCPU, /*same_bits=*/false);
}

TEST(DecodeAttention, RefusesWrongInput) {
  const DecodeInputs good = decode_inputs({}, at::kFloat, at::kCPU);
  const auto refused = [&](const std::function<void(DecodeInputs&)>& spoil, const std::vector<std::string>& parts) {
    DecodeInputs in = good;
    spoil(in);
    expect_message(error_of([&] { in.run(); }), parts);
  };
  refused([](DecodeInputs& in) { in.qkv = in.qkv.narrow(1, 0, 511); }, {"hrm::decode_attention_", "[3, 511]"});
  refused([](DecodeInputs& in) { in.qkv = in.qkv.narrow(1, 0, 64 * 7); }, {"hrm::decode_attention_", "multiple of 2"});
  refused([](DecodeInputs& in) { in.values = in.values.narrow(2, 0, 9); }, {"hrm::decode_attention_", "[3, 2, 9, 64]"});
  refused([](DecodeInputs& in) { in.keys = in.keys.to(at::kHalf); }, {"one floating-point dtype", "Half"});
  refused([](DecodeInputs& in) { in.lengths = in.lengths.to(at::kInt); }, {"lengths", "int64"});
  refused([](DecodeInputs& in) { in.options.cos = in.options.cos.narrow(0, 0, 39); }, {"cos and sin", "[39, 32]"});
  refused([](DecodeInputs& in) { in.options.q_weight = at::ones({64}); }, {"both be there"});
  refused([](DecodeInputs& in) { in.options.q_weight = in.options.k_weight = at::ones({63}); }, {"(64) float32"});
}

}  // namespace
}  // namespace hrm::ops
