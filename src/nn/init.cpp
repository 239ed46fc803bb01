#include "hrm/nn/init.h"

#include <ATen/Parallel.h>

#include <cmath>
#include <numbers>

#include "hrm/base/error.h"
#include "hrm/base/philox.h"
#include "hrm/nn/parameter.h"
#include "hrm/ops/start_state.h"

namespace hrm::nn {
namespace {

constexpr double kCut = 2.0;

// The draws `first`, a multiple of 4, to first + count of CounterRng(seed, Stream::init, index), made normal. Threads
// share it once: for the many blocks of a large model, waiting for each other after every step took most of the time.
at::Tensor normal_draws(int64_t count, double std, uint64_t seed, uint64_t index, int64_t first = 0) {
  const at::Tensor out = at::empty({count}, at::kFloat);
  float* const values = out.mutable_data_ptr<float>();
  const double bound = std::erf(kCut / std::numbers::sqrt2);
  const std::array<uint32_t, 2> key{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  at::parallel_for(0, (count + 3) / 4, 4096, [&](int64_t begin, int64_t end) {
    const at::NoGradGuard no_grad;  // of this thread
    for (int64_t block = begin; block < end; ++block) {
      const auto words = philox4x32({static_cast<uint32_t>(first / 4 + block), static_cast<uint32_t>(Stream::init),
                                     static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32)},
                                    key);
      for (int64_t i = block * 4; i < std::min(count, block * 4 + 4); ++i) {
        const double unit = static_cast<double>(words[i % 4] >> 8) * 0x1.0p-24;
        values[i] = static_cast<float>(-bound + 2 * bound * unit);
      }
    }
    const int64_t from = begin * 4;
    const at::Tensor part = out.narrow(0, from, std::min(count, end * 4) - from);
    part.copy_(trunc_normal_from_uniform(part, std));
  });
  return out;
}

// Each row by itself, so that a part can be drawn without the rest.
RowSource drawn_rows(int64_t columns, uint64_t seed, uint64_t index) {
  return [=](int64_t first, int64_t count) {
    const double std = 1.0 / std::sqrt(static_cast<double>(columns));
    const int64_t begin = first * columns, before = begin % 4;
    return normal_draws(before + count * columns, std, seed, index, begin - before)
        .narrow(0, before, count * columns)
        .view({count, columns});
  };
}

}  // namespace

at::Tensor trunc_normal_from_uniform(const at::Tensor& u, double std) {
  return ops::truncated_normal(u, std);
}

void trunc_normal_(at::Tensor tensor, double std, uint64_t seed, std::string_view name) {
  if (tensor.scalar_type() != at::kFloat) {
    fail(ExitCode::unexpected, "trunc_normal_: '", name, "' must be float32");
  }
  const at::NoGradGuard no_grad;
  if (std == 0) {
    tensor.zero_();
    return;
  }
  tensor.copy_(normal_draws(tensor.numel(), std, seed, hash_name(name)).view(tensor.sizes()));
}

RowSource initial_rows(const at::Tensor& parameter, uint64_t seed, std::string_view name, const ParameterCut& cut) {
  const RowSource whole = drawn_rows(cut.whole_sizes(parameter.sizes())[1], seed, hash_name(name));
  return part_rows(whole, cut);
}

void init_parameter(at::Tensor parameter, uint64_t seed, std::string_view name, const ParameterCut& cut) {
  const at::NoGradGuard no_grad;
  if (parameter.dim() == 2 && parameter.is_contiguous()) {
    read_elements(initial_rows(parameter, seed, name, cut), parameter.size(1), 0, parameter.view(-1));
  } else if (parameter.dim() >= 2 && parameter.scalar_type() != at::kFloat) {
    const at::Tensor values = at::empty(parameter.sizes(), at::kFloat);
    init_parameter(values, seed, name, cut);
    parameter.copy_(values);
  } else if (parameter.dim() >= 2) {
    trunc_normal_(parameter, 1.0 / std::sqrt(static_cast<double>(parameter.size(-1))), seed, name);
  } else {
    parameter.zero_();
  }
}

void init_parameters(torch::nn::Module& module, uint64_t seed) {
  const at::NoGradGuard no_grad;
  const ParameterCuts cuts(module);
  const OutlineOwners owners(module);
  for (const auto& item : module.named_parameters()) {
    if (item.value().is_meta()) continue;
    if (HasComputeWeight* const owner = owners.of(item.value())) {
      owner->set_source(initial_rows(item.value(), seed, item.key(), cuts.of(item.value())));
    } else {
      init_parameter(item.value(), seed, item.key(), cuts.of(item.value()));
    }
  }
  if (auto* own = dynamic_cast<HasOwnInit*>(&module)) own->init_own(seed, "");
  for (const auto& item : module.named_modules("", /*include_self=*/false)) {
    if (auto* own = dynamic_cast<HasOwnInit*>(item.value().get())) own->init_own(seed, item.key());
  }
}

}  // namespace hrm::nn
