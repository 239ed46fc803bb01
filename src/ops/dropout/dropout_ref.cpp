#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>

#include "hrm/base/philox.h"
#include "ops/dropout/dropout_impl.h"

namespace hrm::ops::reference {

at::Tensor dropout_factors(at::IntArrayRef sizes, int64_t step, double p, int64_t seed) {
  const at::Tensor factors = at::empty(sizes, at::kFloat);
  float* to = factors.mutable_data_ptr<float>();
  const int64_t count = factors.numel();
  const CounterRng rng(static_cast<uint64_t>(seed), Stream::dropout, static_cast<uint64_t>(step));
  const uint32_t threshold = dropout_threshold(p);
  const float scale = dropout_scale(p);
  at::parallel_for(0, (count + 3) / 4, 4096, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      uint32_t words[4];
      rng.block(static_cast<uint32_t>(block), words);
      for (int64_t i = 4 * block; i < std::min(count, 4 * block + 4); ++i) {
        to[i] = words[i % 4] >= threshold ? scale : 0.0f;
      }
    }
  });
  return factors;
}

at::Tensor dropout(const at::Tensor& x, const at::Tensor& step, double p, int64_t seed) {
  return (x * dropout_factors(x.sizes(), step.item<int64_t>(), p, seed).to(x.device())).to(x.scalar_type());
}

void dropout_add_(const at::Tensor& sum, const at::Tensor& x, const at::Tensor& step, double p, int64_t seed) {
  const at::Tensor factors = dropout_factors(x.sizes(), step.item<int64_t>(), p, seed).to(x.device());
  sum.copy_(sum + x * factors);
}

}  // namespace hrm::ops::reference
