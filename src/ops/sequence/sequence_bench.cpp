// Cases of `bench ops`, and the kinds of work that profiles count the kernels as.
#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

#include "hrm/runtime/kernel_groups.h"
#include "ops/common/bench_cases.h"

namespace hrm::ops::bench {
namespace {

using c10::IValue;

// The recurrence of Mamba2, as wide as the recipe's recursion: heads of 64 channels, a state of 64 in one group.
struct ScanInputs {
  at::Tensor x, dt, A, B, C, D;
};

ScanInputs scan_inputs(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  const int64_t heads = std::max<int64_t>(s.width / 64, 1);
  const std::vector<int64_t> state{s.batch, s.length(), 1, 64};
  return {random.activations({s.batch, s.length(), heads, 64}),
          random.floats({s.batch, s.length(), heads}).abs() * 0.1,
          -random.floats({heads}).abs(),
          random.activations(state),
          random.activations(state),
          random.floats({heads})};
}

BenchCall ssd_scan(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const ScanInputs in = scan_inputs(s, device, dtype);
  return {{in.x, in.dt, in.A, in.B, in.C, in.D, int64_t{64}, IValue()}};
}

BenchCall ssd_scan_backward(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const ScanInputs in = scan_inputs(s, device, dtype);
  return {{at::randn_like(in.x), IValue(), in.x, in.dt, in.A, in.B, in.C, in.D, int64_t{64}, IValue()}};
}

// Queries, keys and values of each token at another place.
BenchCall sum_rows(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const int64_t tokens = s.batch * s.length();
  const at::Tensor places = at::randperm(tokens, at::device(device).dtype(at::kLong));
  const auto table = [](const at::Tensor& t) { return t.to(at::kInt).unsqueeze(1); };
  return {{Random{device, dtype}.activations({tokens, 3 * s.width}), table(places), table(places.argsort()), IValue(),
           IValue(), IValue()}};
}

BenchCall conv_swiglu(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  return {
      {random.activations({s.batch, s.length(), 2 * s.inner}), random.floats({s.inner, 2}), random.floats({s.inner})}};
}

BenchCall conv_swiglu_backward(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  BenchCall call = conv_swiglu(s, device, dtype);
  call.arguments.insert(call.arguments.begin(), Random{device, dtype}.activations({s.batch, s.length(), s.inner}));
  call.arguments.emplace_back(true);
  return call;
}

const KernelGroups kSequenceGroups{
    {"ConvSwiglu", "SwiGLU"},
    {"conv_swiglu", "SwiGLU"},
    {"SumRows", "rows of shared tokens"},
    {"sum_rows", "rows of shared tokens"},
};

}  // namespace

std::vector<BenchOp> sequence_cases() {
  return {
      {"hrm::ssd_scan", ssd_scan},
      {"hrm::ssd_scan_backward", ssd_scan_backward},
      {"hrm::sum_rows", sum_rows},
      {"hrm::conv_swiglu", conv_swiglu},
      {"hrm::conv_swiglu_backward", conv_swiglu_backward},
  };
}

}  // namespace hrm::ops::bench
