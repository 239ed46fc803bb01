#include <ATen/ATen.h>

#include "ops/common/accumulate_type.h"
#include "ops/sequence/sum_rows_impl.h"

namespace hrm::ops::reference {
namespace {

at::Tensor rows_of(const at::Tensor& with_zeros, const at::Tensor& entries) {
  return with_zeros.index_select(0, at::where(entries.ge(0), entries, with_zeros.size(0) - 1).to(at::kLong));
}

}  // namespace

at::Tensor sum_rows(const at::Tensor& x, const RowMap& map, const at::Tensor& base) {
  const at::ScalarType wide = accumulate_type(x);
  const at::Tensor with_zeros = at::cat({x.to(wide), at::zeros({1, x.size(1)}, x.options().dtype(wide))});
  const int64_t R = map.count();
  at::Tensor sum = at::zeros({R + 1, x.size(1)}, with_zeros.options());  // and one for what no row has
  if (base.defined()) sum.narrow(0, 0, base.size(0)).copy_(base);
  if (map.rows_begin.defined()) {
    const at::Tensor index = at::arange(map.rows.numel(), map.rows.options());
    const at::Tensor of = at::searchsorted(map.rows_begin, index, /*out_int32=*/false, /*right=*/true) - 1;
    const at::Tensor inside = index.lt(map.rows_begin.select(0, R));
    sum.index_add_(0, at::where(inside, of, R), rows_of(with_zeros, at::where(inside, map.rows, -1)));
  } else {
    for (int64_t s = 0; s < map.rows.size(1); ++s) sum.narrow(0, 0, R) += rows_of(with_zeros, map.rows.select(1, s));
  }
  return sum.narrow(0, 0, R).to(x.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
}

}  // namespace hrm::ops::reference
