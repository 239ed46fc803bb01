#pragma once
// Checks of rows at other places that hold on every device.

#include "hrm/ops/sum_rows.h"
#include "ops/op_testing.h"

namespace hrm::ops::testing {

// Of entries -1 to `from` - 1 at random, (to, each), and the same seen from the other side.
inline RowMap random_row_map(int64_t from, int64_t to, int64_t each, uint64_t seed) {
  at::Generator generator = at::detail::createCPUGenerator();
  generator.set_current_seed(seed);
  const at::Tensor rows = at::randint(-1, from, {to, each}, generator, at::kInt);
  const auto* const row = rows.const_data_ptr<int32_t>();
  std::vector<std::vector<int32_t>> back(static_cast<size_t>(from));
  size_t most = 1;
  for (int64_t i = 0; i < to * each; ++i) {
    if (row[i] < 0) continue;
    std::vector<int32_t>& places = back[static_cast<size_t>(row[i])];
    places.push_back(static_cast<int32_t>(i / each));
    most = std::max(most, places.size());
  }
  const at::Tensor table = at::full({from, static_cast<int64_t>(most)}, -1, at::kInt);
  for (int64_t k = 0; k < from; ++k) {
    const std::vector<int32_t>& places = back[static_cast<size_t>(k)];
    std::copy(places.begin(), places.end(), table.data_ptr<int32_t>() + k * table.size(1));
  }
  return {rows, table};
}

inline RowMap on(const RowMap& map, at::Device device) {
  const auto there = [&](const at::Tensor& t) { return t.defined() ? t.to(device) : at::Tensor(); };
  return {there(map.rows), there(map.back), there(map.rows_begin), there(map.back_begin)};
}

// The same with lists in place of tables, behind whose ends stands what must not be read.
inline RowMap as_lists(const RowMap& map) {
  const auto list = [](const at::Tensor& table) {
    return at::cat({table.masked_select(table.ge(0)), at::full({3}, 1 << 30, at::kInt)});
  };
  const auto begin = [](const at::Tensor& table) {
    return at::cat({at::zeros({1}, at::kInt), table.ge(0).sum(1).cumsum(0).to(at::kInt)});
  };
  return {list(map.rows), list(map.back), begin(map.rows), begin(map.back)};
}

// y = m x and its gradient m^T dy, with a dense matrix m in place of the tables.
inline void expect_good_sum_rows(at::Device device) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t width : {1, 7, 264}) {
      for (const int64_t each : {1, 3}) {
        for (const auto& [from, to] : {std::pair{1, 5}, std::pair{40, 70}, std::pair{300, 90}}) {
          const std::string what = cat(dtype, " width ", width, ", ", each, " of ", from, " to ", to);
          const RowMap map = random_row_map(from, to, each, static_cast<uint64_t>(width + each));
          const at::Tensor named = at::where(map.rows.ge(0), map.rows, from).to(at::kLong);
          const at::Tensor m = at::zeros({to, from + 1}, at::kDouble)
                                   .scatter_add(1, named, at::ones(named.sizes(), at::kDouble))
                                   .narrow(1, 0, from);
          const at::Tensor x = normal({from, width}, 1, dtype, device).requires_grad_(), there = m.to(device);
          const auto size_of = [](const at::Tensor& matrix, const at::Tensor& of) {
            return matrix.matmul(of.detach().abs().to(at::kDouble)).max().item<double>();
          };
          const at::Tensor y = sum_rows(x, on(map, device));
          ASSERT_EQ(y.scalar_type(), dtype) << what;
          const at::Tensor exact = there.matmul(x.detach().to(at::kDouble));
          expect_as_good(y.detach(), exact.to(dtype), exact, what, size_of(there, x));
          const at::Tensor grad = normal({to, width}, 2, dtype, device);
          y.backward(grad);
          // With rows that are there already.
          const at::Tensor first = normal({to / 2, width}, 3, dtype, device).requires_grad_();
          at::Tensor whole = exact.clone();
          whole.narrow(0, 0, to / 2) += first.detach();
          const at::Tensor on_top = sum_rows(x.detach(), on(map, device), first);
          expect_as_good(on_top.detach(), whole.to(dtype), whole, what + ", base", size_of(there, x) + 4);
          on_top.backward(grad);
          expect_same_bits(first.grad(), grad.narrow(0, 0, to / 2), what);
          const at::Tensor exact_grad = there.t().matmul(grad.to(at::kDouble));
          expect_as_good(x.grad(), exact_grad.to(dtype), exact_grad, what + ", gradient", size_of(there.t(), grad));
          const at::Tensor leaf = x.detach().clone().requires_grad_();
          const RowMap lists = on(as_lists(map), device);
          sum_rows(leaf, lists).backward(grad);
          expect_same_bits(leaf.grad(), x.grad(), what + ", lists, gradient");
          expect_same_bits(sum_rows(x.detach(), lists, first.detach()), on_top.detach(), what + ", lists");
        }
      }
    }
  }
}

}  // namespace hrm::ops::testing
