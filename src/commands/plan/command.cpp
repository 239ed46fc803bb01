// hrm_train plan.
#include <iostream>

#include "commands/plan/report.h"
#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/base/text.h"
#include "hrm/build_config.h"
#include "hrm/commands/commands.h"
#include "hrm/config/load.h"
#include "hrm/tasks/registry.h"

#if HRM_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

namespace hrm::commands {
namespace {

// Name of the first GPU of this machine; empty where there is none.
std::string gpu_here() {
#if HRM_WITH_CUDA
  cudaDeviceProp properties{};
  if (cudaGetDeviceProperties(&properties, 0) == cudaSuccess) return properties.name;
  cudaGetLastError();
#endif
  return "";
}

GpuFacts choose_gpu(const std::string& wanted) {
  const std::string here = wanted.empty() ? gpu_here() : "";
  const std::string name = wanted.empty() ? here : wanted;
  if (name.empty()) return known_gpus().front();
  if (const GpuFacts* gpu = tasks::find_gpu(name)) return *gpu;
  std::string names;
  for (const GpuFacts& gpu : known_gpus()) names += (names.empty() ? "" : ", ") + gpu.name;
  if (wanted.empty()) {
    fail(ExitCode::usage, "plan does not know the GPU here, '", printable(here),
         "'; give one like it by --gpu: ", names);
  }
  fail(ExitCode::usage, "--gpu '", printable(wanted), "' is not known here; use one of ", names);
}

// The configured model with the sizes of its data.
PlanInput read_plan_input(const PlanOptions& options, const config::Config& config, const GpuFacts& gpu) {
  const tasks::TaskSpec& spec = tasks::task_spec(config);
  require(spec.plan != nullptr, ExitCode::usage, "plan cannot estimate task ", spec.settings->name,
          "; 'hrm_train bench step' measures a step of it");
  const tasks::PlannedModel planned = spec.plan(config, {.seq_len = options.seq_len, .vocab_size = options.vocab_size});
  PlanInput input = make_plan_input(config, planned.model, gpu);
  input.train_examples = planned.train_examples;
  return input;
}

RanksInput ranks_input(const PlanOptions& options, const PlanInput& one) {
  RanksInput input{one, options.ranks_per_node, options.weak, {}};
  input.links = make_links(one.gpu, {.node_gbs = options.link_gbs,
                                     .network_gbs = options.network_gbs,
                                     .node_hop_us = options.hop_us,
                                     .network_hop_us = options.network_hop_us,
                                     .measured = {options.bandwidths.begin(), options.bandwidths.end()}});
  return input;
}

Json plan_ranks(const PlanOptions& options, const PlanInput& one) {
  const RanksInput input = ranks_input(options, one);
  std::vector<RanksPlan> plans;
  for (const int64_t ranks : options.ranks) {
    plans.push_back(make_ranks_plan(input, ranks));
    plans.back().advice = why_tensor_does_not_pay(input, plans.back());
  }
  return ranks_json(input, plans);
}

void check_settings(const config::Config& config) {
  require(
      config.runtime.device != config::DeviceChoice::cpu, ExitCode::usage,
      "plan estimates training on a GPU, but runtime.device is 'cpu'; on the CPU 'hrm_train bench step' measures it");
  require(config.ops.backend == config::OpsBackend::fused, ExitCode::usage,
          "plan estimates our kernels, but ops.backend is 'reference', which takes more memory and time; set it to "
          "'fused', or measure it with 'hrm_train bench step'");
}

// `one`: of the configuration without a mesh, so that its data are read once.
Json plan_best(const PlanOptions& options, const PlanInput& one) {
  require(options.ranks.size() == 1, ExitCode::usage, "--best compares the meshes of one number of ranks, but --ranks ",
          "gives ", options.ranks.size(), "; give one");
  const RanksInput base = ranks_input(options, one);
  const auto with = [&](const MeshSettings& mesh) {
    std::vector<std::string> overrides = options.overrides;
    for (std::string& setting : mesh.overrides()) overrides.push_back(std::move(setting));
    RanksInput input = base;
    input.one.config = config::load_config(options.config_files, overrides).config;
    return input;
  };
  return best_json(base, options.ranks.front(), find_best_meshes(options.ranks.front(), options.ranks_per_node, with));
}

// The configuration, of which --best sets the mesh.
config::Config load_settings(const PlanOptions& options) {
  std::vector<std::string> overrides = options.overrides;
  if (options.best) {
    for (std::string& setting : MeshSettings().overrides()) overrides.push_back(std::move(setting));
  }
  return config::load_config(options.config_files, overrides).config;
}

}  // namespace

int run_plan(const PlanOptions& options) {
  const config::Config config = load_settings(options);
  require(config.parallel.tensor == 1 || !options.ranks.empty(), ExitCode::usage,
          "parallel.tensor = ", config.parallel.tensor, " cuts the model over ranks; give their number by --ranks");
  check_settings(config);
  const PlanInput input = read_plan_input(options, config, choose_gpu(options.gpu));
  Json json;
  if (options.ranks.empty()) {
    json = plan_json(input, make_plan(input));
    print_plan(json, std::cout);
  } else if (options.best) {
    json = plan_best(options, input);
    print_best(json, std::cout);
  } else {
    json = plan_ranks(options, input);
    print_ranks(json, std::cout);
  }
  if (!options.json_out.empty()) write_text_atomic(options.json_out, json.dump(2) + "\n");
  return static_cast<int>(ExitCode::done);
}

}  // namespace hrm::commands
