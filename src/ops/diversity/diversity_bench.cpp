// Cases of `bench ops`.
#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

#include "ops/common/bench_cases.h"

namespace hrm::ops::bench {
namespace {

using c10::IValue;

// Embeddings of three answers to each of a quarter as many questions as there are samples; where these are long, one
// group of 4,096. As wide as a sentence encoder (all-MiniLM-L6-v2) makes them, and float32 as it does.
BenchCall semantic_diversity(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const std::vector<int64_t> sizes = s.length() > 512 ? std::vector<int64_t>{1, 4096, 384}
                                                      : std::vector<int64_t>{std::max<int64_t>(s.batch / 4, 1), 3, 384};
  return {{Random{device, dtype}.floats(sizes), IValue()}};
}

}  // namespace

std::vector<BenchOp> diversity_cases() {
  return {
      {"hrm::semantic_diversity", semantic_diversity},
  };
}

}  // namespace hrm::ops::bench
