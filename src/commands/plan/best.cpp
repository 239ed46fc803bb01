#include "commands/plan/best.h"

#include <algorithm>
#include <cctype>
#include <iterator>

#include "hrm/base/error.h"

namespace hrm::commands {
namespace {

constexpr int64_t kMostTensor = 1024, kMostReplicas = 1024;  // the limits of the keys

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

std::vector<int64_t> divisors(int64_t n, int64_t most) {
  std::vector<int64_t> all;
  for (int64_t i = 1; i <= std::min(n, most); ++i) {
    if (n % i == 0) all.push_back(i);
  }
  return all;
}

std::vector<MeshSettings> meshes_of(int64_t ranks, int64_t per_node) {
  std::vector<MeshSettings> meshes;
  for (const int64_t tensor : divisors(ranks, kMostTensor)) {
    const int64_t data = ranks / tensor;
    meshes.push_back({.tensor = tensor});
    for (int64_t zero = 1; zero <= 3 && data > 1; ++zero) {
      for (const int64_t replicas : divisors(data, kMostReplicas)) {
        const int64_t shards = data / replicas;
        const bool in_node = shards > 1 && per_node % (tensor * shards) == 0;
        if (replicas == 1 || in_node) meshes.push_back({.tensor = tensor, .zero = zero, .replicas = replicas});
      }
    }
  }
  return meshes;
}

}  // namespace

std::vector<std::string> MeshSettings::overrides() const {
  return {cat("parallel.tensor=", tensor), cat("parallel.zero=", zero), cat("parallel.replicas=", replicas)};
}

BestMeshes find_best_meshes(int64_t ranks, int64_t per_node,
                            const std::function<RanksInput(const MeshSettings&)>& with) {
  BestMeshes best;
  for (const MeshSettings& mesh : meshes_of(ranks, per_node)) {
    try {
      MeshPlan plan{mesh, make_ranks_plan(with(mesh), ranks)};
      (plan.fits() ? best.fitting : best.too_large).push_back(std::move(plan));
    } catch (const Error& error) {
      if (error.code() != ExitCode::usage) throw;
      refuse(best, mesh, error.what());
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
