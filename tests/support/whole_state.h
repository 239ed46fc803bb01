#pragma once
// The state of several ranks as whole tensors.

#include <ATen/ATen.h>

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "hrm/base/error.h"
#include "hrm/parallel/comm.h"
#include "support/state_parts.h"

namespace hrm::test {

// The tensors of all ranks, on every rank. A collective operation; all ranks have the same names.
inline WholeState whole_state(Stateful& state, parallel::Comm& comm) {
  WholeState out;
  for (const TensorEntry& entry : list_state(state).tensors) {
    const at::Tensor own = entry.tensor.detach().cpu().clone().contiguous();
    if (!entry.part.split) {
      out[entry.name] = own;
      continue;
    }
    const at::Tensor whole = at::zeros(entry.part.sizes, own.options());
    // "sizes here|boxes|bytes" of each rank.
    std::string text;
    for (const int64_t size : own.sizes()) text += std::to_string(size) + " ";
    text += "|" + part_text(entry.part) + "|";
    text.append(static_cast<const char*>(own.const_data_ptr()), own.nbytes());
    for (const std::string& rank : comm.all_gather_text(text)) {
      const size_t first = rank.find('|'), second = rank.find('|', first + 1);
      std::vector<int64_t> sizes;
      for (size_t at = 0; at < first; at = rank.find(' ', at) + 1) sizes.push_back(std::stoll(rank.substr(at)));
      StatePart part;
      require(parse_part(rank.substr(first + 1, second - first - 1), part), ExitCode::unexpected, "malformed boxes");
      const at::Tensor here = at::empty(sizes, own.options());
      if (here.numel() > 0) std::memcpy(here.mutable_data_ptr(), rank.data() + second + 1, here.nbytes());
      copy_part(part, here, whole, /*to_whole=*/true);
    }
    out[entry.name] = whole;
  }
  return out;
}

}  // namespace hrm::test
