#include "ops/common/bench_cases.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include "hrm/base/error.h"

namespace hrm::ops {

const std::vector<BenchOp>& bench_ops() {
  static const std::vector<BenchOp> ops = [] {
    std::vector<BenchOp> all;
#define HRM_CASES_ROW(family) bench::family##_cases,
    for (const auto& cases : {HRM_OP_FAMILIES(HRM_CASES_ROW)}) {
#undef HRM_CASES_ROW
      const std::vector<BenchOp> some = cases();
      all.insert(all.end(), some.begin(), some.end());
    }
    return all;
  }();
  return ops;
}

std::vector<c10::IValue> call_op(const std::string& op, const std::vector<c10::IValue>& arguments) {
  const c10::OperatorHandle handle = c10::Dispatcher::singleton().findSchemaOrThrow(op.c_str(), "");
  std::vector<c10::IValue> stack = arguments;
  // Defaults of the schema for arguments that the caller leaves out.
  for (size_t i = stack.size(); i < handle.schema().arguments().size(); ++i) {
    const auto& missing = handle.schema().arguments()[i];
    require(missing.default_value().has_value(), ExitCode::unexpected, op, ": no value for '", missing.name(), "'");
    stack.push_back(*missing.default_value());
  }
  handle.callBoxed(&stack);
  return stack;
}

namespace bench {

RotaryInputs rotary_inputs(const BenchShape& s, at::Device device) {
  const int64_t head_dim = s.width / s.heads;
  const at::Tensor exponent = at::arange(0, head_dim, 2, at::kFloat) / static_cast<double>(head_dim);
  const at::Tensor angle =
      at::outer(at::arange(s.length(), at::kFloat), at::pow(at::scalar_tensor(10000, at::kFloat), -exponent));
  return {angle.cos().to(device), angle.sin().to(device)};
}

AttentionInputs attention_inputs(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const RotaryInputs table = rotary_inputs(s, device);
  return {Random{device, dtype}.activations({s.batch, s.length(), 3 * s.width}), table.cos, table.sin};
}

double attention_flops(const BenchShape& s) {
  return 2 * product_flops(s.batch * s.length(), s.length(), s.width);
}

at::Tensor labels(const BenchShape& s, at::Device device) {
  return at::randint(1, s.vocab, {s.batch, s.tokens}, at::device(device).dtype(at::kInt));
}

std::vector<std::vector<int64_t>> weight_sizes(const BenchShape& s) {
  std::vector<std::vector<int64_t>> sizes{{s.vocab, s.width}, {s.vocab, s.width}};
  for (int64_t layer = 0; layer < s.layers; ++layer) {
    if (s.mixes_by_mlp) {
      sizes.push_back({2 * s.mix_inner, s.length()});
      sizes.push_back({s.length(), s.mix_inner});
    } else {
      sizes.push_back({3 * s.width, s.width});
      sizes.push_back({s.width, s.width});
    }
    sizes.push_back({2 * s.inner, s.width});
    sizes.push_back({s.width, s.inner});
  }
  return sizes;
}

}  // namespace bench
}  // namespace hrm::ops
