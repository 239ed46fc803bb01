// Cases of `bench ops`.
#include <ATen/ATen.h>

#include <vector>

#include "ops/common/bench_cases.h"

namespace hrm::ops::bench {
namespace {

BenchCall dropout(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const at::Tensor step = at::zeros({}, at::dtype(at::kLong).device(device));
  return {{Random{device, dtype}.activations({s.batch, s.length(), s.width}), step, 0.1, int64_t{7}}};
}

BenchCall dropout_add(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  BenchCall call = dropout(s, device, dtype);
  call.arguments.insert(call.arguments.begin(), at::zeros_like(call.arguments[0].toTensor()));
  return call;
}

}  // namespace

std::vector<BenchOp> dropout_cases() {
  return {
      {"hrm::dropout", dropout},
      {"hrm::dropout_add_", dropout_add},
  };
}

}  // namespace hrm::ops::bench
