#include "hrm/parallel/cut_entries.h"

#include <algorithm>
#include <string_view>

#include "hrm/base/error.h"

namespace hrm::parallel {
namespace {

StatePart part_of(const nn::ParameterCut& cut, at::IntArrayRef here) {
  StatePart part{.split = true, .sizes = cut.whole_sizes(here), .boxes = {}};
  const auto dimension = static_cast<size_t>(cut.dimension());
  for (const nn::ParameterCut::Box& box : cut.boxes()) {
    if (box.size == 0) continue;
    StateBox out{std::vector<int64_t>(here.size()), std::vector<int64_t>(here.size()), here.vec()};
    out.here[dimension] = box.here;
    out.there[dimension] = box.there;
    out.sizes[dimension] = box.size;
    part.boxes.push_back(std::move(out));
  }
  return part;
}

// Adds boxes for `size` elements from `first` on, in C order, of a tensor of these sizes, of which `here` is the place
// of the first: the rest of a row, whole rows, and the beginning of a row, likewise along each dimension.
void add_packed(std::vector<StateBox>& boxes, at::IntArrayRef sizes, size_t dimension, std::vector<int64_t> index,
                int64_t first, int64_t size, int64_t here) {
  if (size == 0) return;
  const int64_t row = count_of(sizes.slice(dimension + 1));
  if (dimension + 1 == sizes.size() || (first % row == 0 && size % row == 0)) {
    StateBox& box = boxes.emplace_back(StateBox{{here}, std::move(index), {}});
    box.there.resize(sizes.size(), 0);
    box.there[dimension] = first / row;
    box.sizes.assign(sizes.size(), 1);
    box.sizes[dimension] = size / row;
    std::copy(sizes.begin() + static_cast<std::ptrdiff_t>(dimension) + 1, sizes.end(),
              box.sizes.begin() + static_cast<std::ptrdiff_t>(dimension) + 1);
    return;
  }
  const auto in_row = [&](int64_t begin, int64_t end) {
    std::vector<int64_t> inner = index;
    inner.push_back(begin / row);
    add_packed(boxes, sizes, dimension + 1, std::move(inner), begin % row, end - begin, here + begin - first);
  };
  const int64_t end = first + size, rows_begin = std::min((first + row - 1) / row * row, end);
  const int64_t rows_end = std::max(end / row * row, rows_begin);
  if (rows_begin > first) in_row(first, rows_begin);
  add_packed(boxes, sizes, dimension, index, rows_begin, rows_end - rows_begin, here + rows_begin - first);
  if (end > rows_end) in_row(rows_end, end);
}

// Of runs of elements of a part of these sizes, as a ZeRO shard has them: where they are in the whole.
StatePart part_of_runs(const nn::ParameterCut& cut, const StatePart& runs) {
  const std::vector<int64_t>& sizes = runs.sizes;
  StatePart part{.split = true, .sizes = cut.whole_sizes(sizes), .boxes = {}};
  const auto dimension = static_cast<size_t>(cut.dimension());
  const int64_t row = count_of(at::IntArrayRef(sizes).slice(dimension + 1));
  for (const StateBox& run : runs.boxes) {
    require(run.sizes.size() == 1, ExitCode::unexpected, "a part of a part is not a run: ", part_text(runs));
    const int64_t first = run.there[0], end = first + run.sizes[0];
    if (dimension == 0) {
      // Rows stay together, so that runs stay runs.
      for (const nn::ParameterCut::Box& box : cut.boxes()) {
        const int64_t begin = std::max(first, box.here * row), stop = std::min(end, (box.here + box.size) * row);
        if (begin >= stop) continue;
        part.boxes.push_back({{run.here[0] + begin - first}, {begin + (box.there - box.here) * row}, {stop - begin}});
      }
      continue;
    }
    const std::vector<nn::ParameterCut::Box> boxes = cut.boxes();
    require(boxes.size() == 1, ExitCode::unexpected, "columns in ", boxes.size(), " pieces");
    const size_t before = part.boxes.size();
    add_packed(part.boxes, sizes, 0, {}, first, run.sizes[0], run.here[0]);
    for (size_t i = before; i < part.boxes.size(); ++i) part.boxes[i].there[dimension] += boxes[0].there;
  }
  return part;
}

// The name of the parameter that an entry belongs to.
std::string parameter_name(const std::string& entry, StateRole role) {
  constexpr std::string_view kAverage = "ema.", kOptimizer = "optim.";
  if (role == StateRole::ema && entry.starts_with(kAverage)) return entry.substr(kAverage.size());
  if (role == StateRole::optimizer && entry.starts_with(kOptimizer)) {
    const size_t moment = entry.rfind('.');
    return moment < kOptimizer.size() ? "" : entry.substr(kOptimizer.size(), moment - kOptimizer.size());
  }
  return role == StateRole::weight ? entry : "";
}

}  // namespace

void CutEntries::tensor(const std::string& name, at::Tensor& tensor, StateRole role, const StatePart& part) {
  const auto found = cuts_.find(parameter_name(name, role));
  if (found == cuts_.end() || found->second.whole()) return inner_.tensor(name, tensor, role, part);
  inner_.tensor(name, tensor, role,
                part.split ? part_of_runs(found->second, part) : part_of(found->second, tensor.sizes()));
}

}  // namespace hrm::parallel
