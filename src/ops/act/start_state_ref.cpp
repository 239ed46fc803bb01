// The readable version; it draws on the host.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <array>

#include "hrm/ops/start_state.h"
#include "ops/act/start_state_impl.h"

namespace hrm::ops::reference {

void start_state_(const at::Tensor& z, const at::Tensor& fresh, const at::Tensor& draws, int64_t number, double std,
                  int64_t seed) {
  const int64_t rows = z.size(0), each = rows == 0 ? 0 : z.numel() / rows;
  const at::Tensor host_draws = draws.to(at::kCPU), host_fresh = fresh.to(at::kCPU),
                   uniforms = at::zeros({rows, each}, at::kFloat);
  const int64_t* draw = host_draws.const_data_ptr<int64_t>();
  const bool* is_fresh = host_fresh.const_data_ptr<bool>();
  float* to = uniforms.mutable_data_ptr<float>();
  at::parallel_for(0, rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      if (!is_fresh[row]) continue;
      const CounterRng rng = draws_of_row(static_cast<uint64_t>(seed), Stream::start_state, draw[row] + number);
      std::array<float, 4> four{};
      for (int64_t i = 0; i < each; i += 4) {
        truncated_uniforms(rng, static_cast<uint32_t>(i / 4), four.data());
        std::copy_n(four.begin(), std::min<int64_t>(4, each - i), to + row * each + i);
      }
    }
  });
  const at::Tensor drawn = truncated_normal(uniforms, std).to(z.device(), z.scalar_type());
  const at::Tensor flat = z.view({rows, each});
  flat.copy_(at::where(fresh.unsqueeze(1), drawn, flat));
}

}  // namespace hrm::ops::reference
