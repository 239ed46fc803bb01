#include "hrm/nn/outline.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace hrm::nn {
namespace {

thread_local bool building_outlines = false;

// Of what is read at a time.
constexpr int64_t kElements = int64_t{1} << 22;

// For a GPU by way of page-locked memory: the copy is faster, and runs while the next rows are read.
void put(const at::Tensor& values, const at::Tensor& out) {
  if (!out.is_cuda() || !values.is_cpu()) {
    out.copy_(values);
    return;
  }
  const at::Tensor staged = at::empty(values.sizes(), out.options().device(at::kCPU).pinned_memory(true));
  staged.copy_(values);
  out.copy_(staged, /*non_blocking=*/true);
}

}  // namespace

OutlineScope::OutlineScope(bool on) : before_(std::exchange(building_outlines, on)) {}

OutlineScope::~OutlineScope() {
  building_outlines = before_;
}

bool OutlineScope::active() {
  return building_outlines;
}

at::Tensor outline(at::IntArrayRef sizes, const at::TensorOptions& options) {
  const at::Tensor one = at::zeros({}, options);
  if (one.is_floating_point()) one.fill_(std::numeric_limits<float>::quiet_NaN());
  return one.expand(sizes).variable_data();  // no view for autograd
}

bool is_outline(const at::Tensor& tensor) {
  return tensor.defined() && !tensor.is_meta() && tensor.numel() > 1 && tensor.storage().nbytes() < tensor.nbytes();
}

at::Tensor make_weight(at::IntArrayRef sizes, const at::TensorOptions& options) {
  return OutlineScope::active() ? outline(sizes, options) : at::empty(sizes, options);
}

RowSource part_rows(RowSource whole, const ParameterCut& cut) {
  if (cut.whole()) return whole;
  return [whole = std::move(whole), boxes = cut.boxes(), dimension = cut.dimension()](int64_t first, int64_t count) {
    std::vector<at::Tensor> pieces;
    if (dimension == 1) {
      const at::Tensor rows = whole(first, count);
      for (const ParameterCut::Box& box : boxes) pieces.push_back(rows.narrow(1, box.there, box.size));
      return at::cat(pieces, 1);
    }
    for (const ParameterCut::Box& box : boxes) {
      const int64_t begin = std::max(first, box.here), end = std::min(first + count, box.here + box.size);
      if (begin < end) pieces.push_back(whole(box.there + begin - box.here, end - begin));
    }
    return at::cat(pieces);
  };
}

void read_elements(const RowSource& rows, int64_t columns, int64_t first, const at::Tensor& out) {
  const at::NoGradGuard no_grad;
  const int64_t most = std::max<int64_t>(1, kElements / columns);
  for (int64_t done = 0; done < out.numel();) {
    const int64_t row = (first + done) / columns, skipped = (first + done) % columns;
    const int64_t wanted = (skipped + out.numel() - done + columns - 1) / columns, count = std::min(most, wanted);
    const int64_t size = std::min(count * columns - skipped, out.numel() - done);
    put(rows(row, count).reshape({-1}).narrow(0, skipped, size), out.narrow(0, done, size));
    done += size;
  }
}

}  // namespace hrm::nn
