// Cases of `bench ops`, and the kinds of work that profiles count the kernels as.
#include <ATen/ATen.h>

#include <vector>

#include "hrm/runtime/kernel_groups.h"
#include "ops/common/bench_cases.h"

namespace hrm::ops::bench {
namespace {

using c10::IValue;

BenchCall rms_norm_residual(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  const std::vector<int64_t> sizes{s.batch, s.length(), s.width};
  return {{random.activations(sizes), random.activations(sizes), kBenchEps}};
}

BenchCall rms_norm_backward(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  const std::vector<int64_t> sizes{s.batch, s.length(), s.width};
  return {{random.activations(sizes), random.activations(sizes), random.floats({s.batch, s.length()}).abs(), IValue()}};
}

BenchCall weighted_rms_norm(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  return {{random.activations({s.batch, s.length(), s.width}), random.floats({s.width}), kBenchEps}};
}

// With the gradient of a residual stream.
BenchCall weighted_rms_norm_backward(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  const std::vector<int64_t> sizes{s.batch, s.length(), s.width};
  return {{random.activations(sizes), random.activations(sizes), random.floats({s.batch, s.length()}).abs(),
           random.floats({s.width}), random.activations(sizes), true}};
}

// Of a stream that two parts share: their sums of one's rows.
BenchCall add_pieces(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  const int64_t rows = s.batch * s.length();
  return {{random.activations({rows, s.width}), random.activations({2, rows, s.width})}};
}

// Of the decoding steps of a wide model.
BenchCall add_pieces_ahead(const BenchShape&, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  constexpr int64_t kRows = 12, kWidth = 4096;
  return {{random.activations({kRows, kWidth}), random.activations({2, kRows, kWidth}), random.floats({kWidth})}};
}

const KernelGroups kNormGroups{
    {"RmsNorm", "norm"},
    {"rms_norm", "norm"},
    {"AddPieces", "norm"},
    {"add_pieces", "norm"},
};

}  // namespace

std::vector<BenchOp> norm_cases() {
  return {
      {"hrm::add_pieces", add_pieces},
      {"hrm::add_pieces_ahead", add_pieces_ahead},
      {"hrm::rms_norm_residual", rms_norm_residual},
      {"hrm::rms_norm_residual_forward", rms_norm_residual},
      {"hrm::rms_norm_backward", rms_norm_backward},
      {"hrm::weighted_rms_norm", weighted_rms_norm},
      {"hrm::weighted_rms_norm_forward", weighted_rms_norm},
      {"hrm::weighted_rms_norm_backward", weighted_rms_norm_backward},
  };
}

}  // namespace hrm::ops::bench
