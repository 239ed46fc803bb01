#include "hrm/nn/cut.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "hrm/base/error.h"

namespace hrm::nn {

int64_t Cut::share(int64_t size, const char* what) const {
  require(size % parts == 0, ExitCode::unexpected, size, " ", what, " cannot be cut into ", parts, " equal parts");
  return size / parts;
}

Cut::Range Cut::range(int64_t size) const {
  const int64_t most = (size + parts - 1) / parts, first = std::min(part * most, size);
  return {.first = first, .count = std::min(most, size - first)};
}

std::vector<ParameterCut::Box> ParameterCut::boxes() const {
  std::vector<Box> boxes;
  if (by == CutBy::vocabulary) {
    const Cut::Range range = cut.range(pieces.front());
    return {{.here = 0, .there = range.first, .size = range.count}};
  }
  int64_t here = 0, there = 0;
  for (const int64_t piece : pieces) {
    const int64_t size = cut.share(piece, "rows or columns of a weight");
    boxes.push_back({.here = here, .there = there + cut.part * size, .size = size});
    here += size;
    there += piece;
  }
  return boxes;
}

std::vector<int64_t> ParameterCut::whole_sizes(at::IntArrayRef part) const {
  std::vector<int64_t> sizes = part.vec();
  if (!whole()) sizes[static_cast<size_t>(dimension())] = std::accumulate(pieces.begin(), pieces.end(), int64_t{0});
  return sizes;
}

at::Tensor ParameterCut::part_of(const at::Tensor& tensor) const {
  if (whole()) return tensor.clone();
  std::vector<at::Tensor> parts;
  for (const Box& box : boxes()) parts.push_back(tensor.narrow(dimension(), box.there, box.size));
  return at::cat(parts, dimension());
}

ParameterCuts::ParameterCuts(const torch::nn::Module& module) {
  find(module, /*partial=*/false);
}

void ParameterCuts::find(const torch::nn::Module& module, bool partial) {
  if (const auto* has = dynamic_cast<const HasPartialGradients*>(&module)) partial = has->has_partial_gradients();
  if (const auto* has = dynamic_cast<const HasCutParameters*>(&module)) {
    for (auto& [parameter, cut] : has->cut_parameters()) cuts_.emplace(parameter.unsafeGetTensorImpl(), cut);
  }
  if (partial) {
    for (const at::Tensor& parameter : module.parameters(/*recurse=*/false)) {
      partial_.insert(parameter.unsafeGetTensorImpl());
    }
  }
  for (const auto& child : module.children()) find(*child, partial);
}

ParameterCut ParameterCuts::of(const at::Tensor& parameter) const {
  const auto found = cuts_.find(parameter.unsafeGetTensorImpl());
  return found == cuts_.end() ? ParameterCut{} : found->second;
}

bool ParameterCuts::sums_over_parts(const at::Tensor& parameter) const {
  return partial_.contains(parameter.unsafeGetTensorImpl()) && of(parameter).whole();
}

}  // namespace hrm::nn
