#include "commands/plan/best.h"

#include <algorithm>
#include <cctype>
#include <iterator>

#include "hrm/base/error.h"

namespace hrm::commands {
namespace {

constexpr int64_t kMostTensor = 1024;  // the limit of parallel.tensor

std::string without_numbers(const std::string& text) {
  std::string out;
  std::copy_if(text.begin(), text.end(), std::back_inserter(out), [](unsigned char c) { return std::isdigit(c) == 0; });
  return out;
}

void refuse(BestMeshes& best, const MeshSettings& mesh, const std::string& why) {
  const auto same = std::find_if(best.refused.begin(), best.refused.end(), [&](const BestMeshes::Refused& refused) {
    return without_numbers(refused.why) == without_numbers(why);
  });
  if (same == best.refused.end()) {
    best.refused.push_back({why, {mesh}});
  } else {
    same->meshes.push_back(mesh);
  }
}

}  // namespace

std::vector<std::string> MeshSettings::overrides() const {
  return {cat("parallel.tensor=", tensor), cat("parallel.zero=", zero)};
}

BestMeshes find_best_meshes(int64_t ranks, const std::function<RanksInput(const MeshSettings&)>& with) {
  BestMeshes best;
  for (int64_t tensor = 1; tensor <= std::min(ranks, kMostTensor); ++tensor) {
    if (ranks % tensor != 0) continue;
    for (int64_t zero = 0; zero <= (ranks > tensor ? 3 : 0); ++zero) {
      const MeshSettings mesh{.tensor = tensor, .zero = zero};
      try {
        MeshPlan plan{mesh, make_ranks_plan(with(mesh), ranks)};
        (plan.fits() ? best.fitting : best.too_large).push_back(std::move(plan));
      } catch (const Error& error) {
        if (error.code() != ExitCode::usage) throw;
        refuse(best, mesh, error.what());
      }
    }
  }
  std::stable_sort(best.fitting.begin(), best.fitting.end(),
                   [](const MeshPlan& a, const MeshPlan& b) { return a.plan.samples_per_s > b.plan.samples_per_s; });
  std::stable_sort(best.too_large.begin(), best.too_large.end(), [](const MeshPlan& a, const MeshPlan& b) {
    return a.plan.own.device_used < b.plan.own.device_used;
  });
  return best;
}

}  // namespace hrm::commands
