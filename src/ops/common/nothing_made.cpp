#include "ops/common/nothing_made.h"

#include <ATen/ops/empty.h>

namespace hrm::ops {

const at::Tensor& nothing_made() {
  static const at::Tensor nothing = at::empty({0}, at::kByte);
  return nothing;
}

}  // namespace hrm::ops
