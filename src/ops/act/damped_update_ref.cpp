// The readable version; its noise is drawn on the host.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <array>

#include "ops/act/damped_update_impl.h"

namespace hrm::ops::reference {

at::Tensor damped_update(const at::Tensor& update, const at::Tensor& state, const std::optional<at::Tensor>& draws,
                         int64_t number, double damping, double std, int64_t seed) {
  const at::ScalarType sum_type = at::promote_types(update.scalar_type(), at::kFloat);
  at::Tensor out = static_cast<float>(1 - damping) * update.to(sum_type);
  if (damping > 0) out = out + static_cast<float>(damping) * state.to(sum_type);
  if (std > 0) {
    const int64_t rows = update.size(0), each = rows == 0 ? 0 : update.numel() / rows;
    const at::Tensor host = draws->to(at::kCPU), noise = at::empty({rows, each}, at::kFloat);
    const int64_t* draw = host.const_data_ptr<int64_t>();
    float* to = noise.mutable_data_ptr<float>();
    at::parallel_for(0, rows, 1, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const CounterRng rng = draws_of_row(static_cast<uint64_t>(seed), Stream::path_noise, draw[row] + number);
        std::array<float, 4> normals{};
        for (int64_t i = 0; i < each; i += 4) {
          normal_block(rng, static_cast<uint32_t>(i / 4), normals.data());
          std::copy_n(normals.begin(), std::min<int64_t>(4, each - i), to + row * each + i);
        }
      }
    });
    out = out + static_cast<float>(std) * noise.to(update.device()).view(update.sizes());
  }
  return out.to(update.scalar_type());
}

}  // namespace hrm::ops::reference
