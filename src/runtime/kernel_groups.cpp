#include "hrm/runtime/kernel_groups.h"

#include <algorithm>
#include <vector>

namespace hrm {
namespace {

// Of libraries; the first entry that fits counts.
constexpr KernelGroup kLibraryGroups[] = {
    {"phase_end", "marks of phases"},
    {"phase_begin", "marks of phases"},
    {"flash", "attention"},
    {"fmha", "attention"},
    {"attention", "attention"},
    {"Attention", "attention"},
    {"sdpa", "attention"},
    {"nvjet", "matrix products"},
    {"mkldnn::_linear", "matrix products"},
    {"gemm", "matrix products"},
    {"Gemm", "matrix products"},
    {"gemv", "matrix products"},
    {"splitK", "matrix products"},
    {"cublas", "matrix products"},
    {"sm90_xmma", "matrix products"},
    {"::mm", "matrix products"},
    {"::bmm", "matrix products"},
    {"::addmm", "matrix products"},
    {"::linear", "matrix products"},
    {"multi_tensor_apply", "optimizer"},
    {"_foreach", "optimizer"},
    {"CatArray", "concatenation"},
    {"::cat", "concatenation"},
    {"softmax", "softmax"},
    {"SoftMax", "softmax"},
    {"reduce_kernel", "reductions"},
    {"column_sum", "reductions"},
    {"::sum", "reductions"},
    {"::mean", "reductions"},
    {"norm", "reductions"},
    {"argmax", "reductions"},
    {"sort", "sort and scan"},
    {"scan", "sort and scan"},
    {"radix", "sort and scan"},
    {"Memcpy", "copies and casts"},
    {"memcpy", "copies and casts"},
    {"copy", "copies and casts"},
    {"index", "gather and scatter"},
    {"embedding", "gather and scatter"},
    {"gather", "gather and scatter"},
    {"scatter", "gather and scatter"},
    {"Memset", "fills"},
    {"memset", "fills"},
    {"fill", "fills"},
    {"Fill", "fills"},
    {"::zero", "fills"},
    {"elementwise", "elementwise"},
    {"vectorized", "elementwise"},
    {"unrolled", "elementwise"},
    {"aten::", "elementwise"},
    {"Backward", "autograd"},
};

// Longest part first.
std::vector<KernelGroup>& own_groups() {
  static std::vector<KernelGroup> groups;
  return groups;
}

}  // namespace

KernelGroups::KernelGroups(std::initializer_list<KernelGroup> groups) {
  std::vector<KernelGroup>& all = own_groups();
  all.insert(all.end(), groups);
  const auto longer = [](const KernelGroup& a, const KernelGroup& b) {
    return std::string_view(a.part).size() > std::string_view(b.part).size();
  };
  std::stable_sort(all.begin(), all.end(), longer);
}

std::string kernel_group(std::string_view name) {
  const auto fits = [&](const KernelGroup& entry) { return name.find(entry.part) != std::string_view::npos; };
  const auto own = std::find_if(own_groups().begin(), own_groups().end(), fits);
  if (own != own_groups().end()) return own->group;
  const auto library = std::find_if(std::begin(kLibraryGroups), std::end(kLibraryGroups), fits);
  return library != std::end(kLibraryGroups) ? library->group : "other";
}

}  // namespace hrm
