// The readable version, on the host.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <array>

#include "ops/act/state_noise_impl.h"

namespace hrm::ops::reference {

void add_state_noise_(const at::Tensor& z, const at::Tensor& keys, const at::Tensor& segments, double std,
                      int64_t seed) {
  const int64_t rows = z.size(0), each = rows == 0 ? 0 : z.numel() / rows;
  const at::Tensor host_keys = keys.to(at::kCPU), host_segments = segments.to(at::kCPU),
                   noise = at::zeros({rows, each}, at::kFloat);
  const int64_t* key = host_keys.const_data_ptr<int64_t>();
  const int64_t* now = host_segments.const_data_ptr<int64_t>();
  float* to = noise.mutable_data_ptr<float>();
  at::parallel_for(0, rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      if (key[row] < 0) continue;
      const CounterRng rng = noise_of_row(static_cast<uint64_t>(seed), key[row], now[row]);
      std::array<float, 4> normals{};
      for (int64_t i = 0; i < each; i += 4) {
        normal_block(rng, static_cast<uint32_t>(i / 4), normals.data());
        std::copy_n(normals.begin(), std::min<int64_t>(4, each - i), to + row * each + i);
      }
    }
  });
  const at::Tensor added = (z.view({rows, each}).to(at::promote_types(z.scalar_type(), at::kFloat)) +
                            static_cast<float>(std) * noise.to(z.device()))
                               .to(z.scalar_type());
  // Rows without noise keep the sign of their zeros, too.
  z.view({rows, each}).copy_(at::where(keys.lt(0).unsqueeze(1), z.view({rows, each}), added));
}

}  // namespace hrm::ops::reference
