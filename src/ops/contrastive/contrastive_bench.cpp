// Cases of `bench ops`, and the kinds of work that profiles count the kernels as.
#include <ATen/ATen.h>

#include <vector>

#include "hrm/runtime/kernel_groups.h"
#include "ops/common/bench_cases.h"

namespace hrm::ops::bench {
namespace {

// Sizes of a memory for text; the recipe gives the rows.
constexpr int64_t kSlots = 2048, kCoords = 16, kOutputs = 64, kClasses = 256, kRelaxSteps = 64;

struct Memory {
  explicit Memory(at::Device device)
      : random{device, at::kFloat},
        keys(random.floats({kSlots, kCoords})),
        slots({keys, keys.square().sum(-1), at::ones({kSlots}, at::device(device)),
               (0.3 * random.floats({kSlots, kOutputs})).to(device.is_cuda() ? at::kHalf : at::kFloat)}) {}

  Random random;
  at::Tensor keys;
  std::vector<at::Tensor> slots;
  c10::List<double> constants{{8.0, 0.125, 2.0, 0.1}};
};

BenchCall geometric_relax(const BenchShape& s, at::Device device, at::ScalarType /*dtype*/) {
  const int64_t rows = s.batch;
  const Memory memory(device);
  const Random& random = memory.random;
  const at::Tensor x = random.floats({rows, kCoords}), o = at::zeros({rows, kOutputs}, at::device(device));
  const std::vector<at::Tensor> nudge{random.weight(kClasses, kOutputs), at::zeros({kClasses}, at::device(device)),
                                      at::zeros({rows}, at::device(device).dtype(at::kLong)),
                                      at::ones({rows}, at::device(device))};
  const double flops = static_cast<double>(kRelaxSteps) * (2 * product_flops(rows, kSlots, kOutputs + kCoords) +
                                                           2 * product_flops(rows, kClasses, kOutputs));
  return {{x, at::zeros_like(x), o, memory.slots, c10::IValue(), at::eye(kCoords, at::device(device)),
           at::tensor({0.05f, 4.0f, 0.01f, 1.0f}, at::device(device)), nudge, std::vector<at::Tensor>(), kRelaxSteps,
           memory.constants, 0.0},
          flops};
}

BenchCall contrastive_statistics(const BenchShape& s, at::Device device, at::ScalarType /*dtype*/) {
  const int64_t rows = s.batch;
  const Memory memory(device);
  const at::Tensor x = memory.random.floats({2 * rows, kCoords}), o = memory.random.floats({2 * rows, kOutputs});
  const at::Tensor zeros = at::zeros({2 * rows}, at::device(device));
  return {{x, o, zeros, at::ones_like(zeros), memory.slots, c10::IValue(), memory.constants},
          2 * product_flops(2 * rows, kSlots, kOutputs + kCoords)};
}

const KernelGroups kContrastiveGroups{
    {"geometric_relax", "contrastive"},
    {"slot_sums", "contrastive"},
    {"add_parts", "contrastive"},
};

}  // namespace

std::vector<BenchOp> contrastive_cases() {
  return {{"hrm::geometric_relax", geometric_relax}, {"hrm::contrastive_statistics", contrastive_statistics}};
}

}  // namespace hrm::ops::bench
