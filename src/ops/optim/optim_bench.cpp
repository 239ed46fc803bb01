// Cases of `bench ops`, and the kinds of work that profiles count the kernels as.
#include <ATen/ATen.h>

#include <vector>

#include "hrm/runtime/kernel_groups.h"
#include "ops/common/bench_cases.h"

namespace hrm::ops::bench {
namespace {

using c10::IValue;

BenchCall adam(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  std::vector<at::Tensor> params, grads, m, v, averages, copies;
  std::vector<double> decay;
  for (const auto& sizes : weight_sizes(s)) {
    params.push_back(random.floats(sizes));
    grads.push_back(random.floats(sizes));
    m.push_back(random.floats(sizes));
    v.push_back(random.floats(sizes).square_());
    averages.push_back(random.floats(sizes));
    copies.push_back(dtype == at::kFloat ? params.back() : params.back().to(dtype));
    decay.push_back(0.1);
  }
  // rule 0: atan2.
  return {{int64_t{0}, params, grads, m, v, averages, copies, decay, std::vector<double>(), random.scalar(1),
           random.scalar(1e-4), random.scalar(1), random.scalar(0),
           at::zeros({}, at::device(device).dtype(at::kDouble)), 0.9, 0.95, 1e-8, 0.999}};
}

BenchCall grad_norm(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  int64_t count = 0;
  for (const auto& sizes : weight_sizes(s)) count += sizes[0] * sizes[1];
  return {{random.floats({count}), 1.0, 2.0, IValue(), random.scalar(0),
           at::zeros({3}, at::device(device).dtype(at::kDouble))}};
}

BenchCall float64_norm(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  int64_t count = 0;
  for (const auto& sizes : weight_sizes(s)) count += sizes[0] * sizes[1];
  return {{Random{device, dtype}.floats({count})}};
}

BenchCall sparse_sign_sgd(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  const at::Tensor ids = at::zeros({s.batch}, at::device(device).dtype(at::kInt));
  return {{random.floats({1, s.width}), ids, random.floats({s.batch, s.width}), random.scalar(1e-4), 0.1,
           random.scalar(0)}};
}

const KernelGroups kOptimGroups{
    {"Adam", "optimizer"},
    {"adam_", "optimizer"},
    {"SparseSignSgd", "optimizer"},
    {"sign_sgd", "optimizer"},
    {"GradNorm", "gradient norm"},
    {"grad_norm", "gradient norm"},
    {"float64_norm", "gradient norm"},
};

}  // namespace

std::vector<BenchOp> optim_cases() {
  return {
      {"hrm::adam_", adam},
      {"hrm::grad_norm", grad_norm},
      {"hrm::float64_norm", float64_norm},
      {"hrm::sparse_sign_sgd_", sparse_sign_sgd},
  };
}

}  // namespace hrm::ops::bench
