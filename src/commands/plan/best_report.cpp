#include <algorithm>
#include <iomanip>
#include <map>
#include <set>

#include "commands/plan/report.h"
#include "hrm/base/error.h"
#include "hrm/base/text.h"
#include "hrm/metrics/metric_text.h"

namespace hrm::commands {
namespace {

constexpr size_t kShown = 10;

void append(std::string& list, const std::string& separator, const std::string& text) {
  list += (list.empty() ? "" : separator) + text;
}

// "tensor=2,4 zero=1,2,3; tensor=8 zero=0", with any replicas; those of `meshes` are named where `others` have the same
// tensor and zero: "tensor=1 zero=1 replicas=4".
std::string names_of(const std::vector<MeshSettings>& meshes, const std::vector<MeshSettings>& others = {}) {
  using Key = std::pair<int64_t, std::string>;  // tensor, replicas or ""
  std::map<Key, std::set<int64_t>> settings;
  for (const MeshSettings& mesh : meshes) {
    const bool any = std::none_of(others.begin(), others.end(), [&](const MeshSettings& other) {
      return other.tensor == mesh.tensor && other.zero == mesh.zero;
    });
    settings[{mesh.tensor, any ? "" : cat(" replicas=", mesh.replicas)}].insert(mesh.zero);
  }
  std::map<std::string, std::string> tensors;  // by zeros and replicas
  for (const auto& [key, of_key] : settings) {
    std::string zeros;
    for (const int64_t zero : of_key) append(zeros, ",", std::to_string(zero));
    append(tensors[zeros + key.second], ",", std::to_string(key.first));
  }
  std::string text;
  for (const auto& [zero, tensor] : tensors) append(text, "; ", cat("tensor=", tensor, " zero=", zero));
  return text;
}

// A reason names where its settings come from; --best has chosen these.
std::string without_origin(std::string why) {
  static const std::string origin = " (command line)";
  for (size_t at = why.find(origin); at != std::string::npos; at = why.find(origin)) why.erase(at, origin.size());
  return why;
}

std::vector<MeshSettings> settings_of(const std::vector<MeshPlan>& meshes) {
  std::vector<MeshSettings> settings;
  for (const MeshPlan& mesh : meshes) settings.push_back(mesh.mesh);
  return settings;
}

Json plans_json(const std::vector<MeshPlan>& meshes, size_t most) {
  Json plans = Json::array();
  for (size_t i = 0; i < std::min(most, meshes.size()); ++i) plans.push_back(ranks_plan_json(meshes[i].plan));
  return plans;
}

// Of a mesh that does not fit.
std::string smallest_text(const Json& plan) {
  const int64_t micro = plan["fitting_micro_batch_size"];
  return cat("the smallest takes ", bytes_text(plan["device_used_bytes"]), " of ",
             bytes_text(plan["device_total_bytes"]), " on each GPU (tensor=", plan["tensor"].dump(),
             " zero=", plan["zero"].dump(), ", micro-batches of ", plan["micro_batch_size"].dump(), "); ",
             micro > 0 ? cat("with train.micro_batch_size=", micro, " it fits")
                       : std::string("no micro-batch of it fits, so plan more ranks or a smaller model"));
}

}  // namespace

Json best_json(const RanksInput& input, int64_t ranks, const BestMeshes& best) {
  Json json = head_json(input);
  json["ranks"] = ranks;
  json["meshes"] = best.fitting.size() + best.too_large.size();
  json["fitting"] = best.fitting.size();
  json["best"] = plans_json(best.fitting, kShown);
  json["too_large"] = plans_json(best.too_large, kShown);
  json["too_large_names"] = names_of(settings_of(best.too_large), settings_of(best.fitting));
  json["refused"] = Json::array();
  for (const BestMeshes::Refused& refused : best.refused) {
    json["refused"].push_back({{"meshes", names_of(refused.meshes)}, {"why", without_origin(refused.why)}});
  }
  const std::vector<MeshPlan>& some = best.fitting.empty() ? best.too_large : best.fitting;
  const bool parts = std::any_of(some.begin(), some.end(), [](const MeshPlan& mesh) { return mesh.mesh.tensor > 1; });
  if (!some.empty()) json["assumptions"] = assumptions_json(input, some.front().plan.own, parts);
  return json;
}

void print_best(const Json& json, std::ostream& out) {
  print_head(json, cat(json["ranks"].dump(), " ", text_of(json["gpu"])), out);
  const Json &best = json["best"], &too_large = json["too_large"];
  const auto cell = [&](int width) -> std::ostream& { return out << std::right << std::setw(width); };
  if (!best.empty()) {
    out << "tensor    data  zero  replicas          step     computing   exposed: tensor      others      memory     "
           "samples/s\n";
  }
  for (const Json& plan : best) {
    const double tensor = exposed_ms(plan, "tensor").value_or(0), all = plan["exposed_ms"];
    const auto ms = [&](int width, double value) { cell(width) << metrics::fixed(value, 2) + " ms"; };
    cell(6) << plan["tensor"].dump();
    cell(8) << plan["data_ranks"].dump();
    cell(6) << plan["zero"].dump();
    cell(10) << plan["replicas"].dump();
    ms(16, plan["step_ms"]);
    ms(14, plan["compute_ms"].get<double>() + plan["slowed_ms"].get<double>());
    ms(14, tensor);
    ms(14, all - tensor);
    cell(12) << bytes_text(plan["device_used_bytes"]);
    cell(12) << metrics::fixed(plan["samples_per_s"], 1) << "\n";
  }
  if (best.empty()) out << "no mesh of " << json["ranks"].dump() << " ranks fits\n";
  const int64_t large = json["meshes"].get<int64_t>() - json["fitting"].get<int64_t>();
  if (large > 0 && best.empty()) {
    out << smallest_text(too_large.front()) << "\n";
  } else if (large > 0) {
    out << "\n"
        << large << (large == 1 ? " mesh does" : " meshes do") << " not fit: " << text_of(json["too_large_names"])
        << "\n";
  }
  if (!json["refused"].empty()) out << "\nleft out\n";
  for (const Json& refused : json["refused"]) {
    out << "  " << text_of(refused["meshes"]) << "\n    " << text_of(refused["why"]) << "\n";
  }
  if (json.contains("assumptions")) print_assumptions(json, out);
}

}  // namespace hrm::commands
