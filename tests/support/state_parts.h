#pragma once
// Between parts of tensors and the whole ones.

#include <ATen/ATen.h>

#include <cstring>
#include <map>
#include <string>

#include "hrm/state/registry.h"

namespace hrm::test {

using WholeState = std::map<std::string, at::Tensor>;

// Copies the elements of a part between it and the whole tensor; both on the CPU, in C order.
inline void copy_part(const StatePart& part, const at::Tensor& here, const at::Tensor& whole, bool to_whole) {
  const size_t element = here.element_size();
  auto* mine = static_cast<char*>(here.mutable_data_ptr());
  auto* all = static_cast<char*>(whole.mutable_data_ptr());
  for (const StateRun& run : runs_of(part, here.sizes())) {
    char *a = mine + static_cast<size_t>(run.here) * element, *b = all + static_cast<size_t>(run.there) * element;
    const size_t bytes = static_cast<size_t>(run.size) * element;
    if (bytes > 0) std::memcpy(to_whole ? b : a, to_whole ? a : b, bytes);
  }
}

// Every entry becomes what it is of the whole tensor.
inline void fill_state(Stateful& state, const WholeState& wholes) {
  const at::NoGradGuard no_grad;
  for (TensorEntry& entry : list_state(state).tensors) {
    const at::Tensor here = at::empty(entry.tensor.sizes(), entry.tensor.options().device(at::kCPU));
    copy_part(entry.part, here, wholes.at(entry.name), /*to_whole=*/false);
    entry.tensor.copy_(here);
  }
}

}  // namespace hrm::test
