#include "hrm/nn/outline.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace hrm::nn {
namespace {

thread_local bool building_outlines = false;

// Of what is read at a time.
constexpr int64_t kElements = int64_t{1} << 20;

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
    out.narrow(0, done, size).copy_(rows(row, count).reshape({-1}).narrow(0, skipped, size));
    done += size;
  }
}

}  // namespace hrm::nn
