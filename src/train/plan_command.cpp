// hrm_train plan.
#include <algorithm>
#include <cctype>
#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/base/text.h"
#include "hrm/config/load.h"
#include "hrm/data/dataset.h"
#include "hrm/data/device_table.h"
#include "hrm/train/commands.h"
#include "plan.h"

#if HRM_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

namespace hrm::train {
namespace {

using Json = nlohmann::ordered_json;

// Name of the first GPU of this machine; empty where there is none.
std::string gpu_here() {
#if HRM_WITH_CUDA
  cudaDeviceProp properties{};
  if (cudaGetDeviceProperties(&properties, 0) == cudaSuccess) return properties.name;
  cudaGetLastError();
#endif
  return "";
}

std::string lower_case(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

GpuFacts choose_gpu(const std::string& wanted) {
  const std::string here = wanted.empty() ? gpu_here() : "";
  const std::string name = lower_case(wanted.empty() ? here : wanted);
  if (name.empty()) return known_gpus().front();
  std::string names;
  for (const GpuFacts& gpu : known_gpus()) {
    if (name.find(lower_case(gpu.name)) != std::string::npos) return gpu;
    names += (names.empty() ? "" : ", ") + gpu.name;
  }
  if (wanted.empty()) {
    fail(ExitCode::usage, "plan does not know the GPU here, '", printable(here),
         "'; give one like it by --gpu: ", names);
  }
  fail(ExitCode::usage, "--gpu '", printable(wanted), "' is not known here; use one of ", names);
}

std::string number(double value, int digits) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(digits) << value;
  return out.str();
}

// The sizes of the data, and the examples that a table on the GPU would hold.
PlanInput read_input(const PlanOptions& options, const config::Config& config, const GpuFacts& gpu) {
  if (options.seq_len > 0) {
    const data::PuzzleMeta meta{.vocab_size = options.vocab_size, .seq_len = options.seq_len};
    return make_plan_input(config, models::resolve_dims(config.model, meta), gpu);
  }
  require(!config.data.train.empty(), ExitCode::usage, "data.train is empty; give data, or --seq-len and --vocab-size");
  const auto dataset =
      data::open_dataset(config.data.train, "train", config.data, static_cast<uint64_t>(config.run.seed));
  PlanInput input = make_plan_input(config, models::resolve_dims(config.model, dataset->meta()), gpu);
  if (data::use_device_table(config, *dataset, at::Device(at::kCUDA, 0))) {
    input.train_examples = dataset->num_examples();
  }
  return input;
}

Json items_json(const std::vector<PlanItem>& items, const char* unit) {
  Json out = Json::array();
  for (const PlanItem& item : items) out.push_back({{"name", item.name}, {unit, item.value}, {"note", item.note}});
  return out;
}

Json plan_json(const PlanInput& input, const Plan& plan) {
  const config::TrainConfig& train = input.config.train;
  Json json;
  json["gpu"] = input.gpu.name;
  json["model"] = input.config.model.arch;
  json["parameters"] = input.parameters;
  json["positions"] = input.dims.puzzle_emb_len + input.dims.seq_len;
  json["global_batch_size"] = train.global_batch_size;
  json["micro_batch_size"] = train.micro_batch_size > 0 ? train.micro_batch_size : train.global_batch_size;
  json["memory"] = items_json(plan.memory, "bytes");
  json["tensors_peak_bytes"] = plan.tensors_peak;
  json["peak_moment"] = plan.peak_moment;
  json["reserved_bytes"] = plan.reserved;
  json["device_used_bytes"] = plan.device_used;
  json["device_total_bytes"] = input.gpu.memory_bytes;
  json["fits"] = plan.device_used <= input.gpu.memory_bytes;
  json["fitting_micro_batch_size"] = plan.fitting_micro_batch;
  json["time"] = items_json(plan.time, "ms");
  json["step_ms"] = plan.step_ms;
  json["samples_per_s"] = static_cast<double>(train.global_batch_size) / (plan.step_ms * 1e-3);
  if (train.steps > 0) json["run_seconds"] = static_cast<double>(train.steps) * plan.step_ms * 1e-3;
  json["assumptions"] = plan.assumptions;
  return json;
}

void print_plan(const Json& json, std::ostream& out) {
  const auto bytes = [](const Json& value) { return human_bytes(static_cast<uint64_t>(value.get<double>())); };
  const auto row = [&](const std::string& name, const std::string& value, const std::string& note) {
    out << "  " << std::left << std::setw(26) << name << std::right << std::setw(12) << value
        << (note.empty() ? "" : "  ") << note << "\n";
  };
  const auto text = [](const Json& value) { return value.get<std::string>(); };
  out << text(json["model"]) << ", " << json["parameters"].dump() << " parameters, " << json["positions"].dump()
      << " positions, batch " << json["global_batch_size"].dump() << " in parts of " << json["micro_batch_size"].dump()
      << ", on one " << text(json["gpu"]) << "\n\nmemory\n";
  for (const Json& item : json["memory"]) row(text(item["name"]), bytes(item["bytes"]), text(item["note"]));
  row("= peak in tensors", bytes(json["tensors_peak_bytes"]), "at: " + text(json["peak_moment"]));
  row("reserved", bytes(json["reserved_bytes"]), "by the allocator");
  row("in use", bytes(json["device_used_bytes"]),
      "of " + bytes(json["device_total_bytes"]) + (json["fits"].get<bool>() ? ": fits" : ": does NOT fit"));
  if (!json["fits"].get<bool>()) {
    const int64_t micro = json["fitting_micro_batch_size"].get<int64_t>();
    out << "  " << (micro > 0 ? cat("with train.micro_batch_size=", micro, " it fits") : "no micro-batch fits") << "\n";
  }
  out << "\ntime of a step\n";
  for (const Json& item : json["time"]) row(text(item["name"]), number(item["ms"], 2) + " ms", text(item["note"]));
  row("= step", number(json["step_ms"], 1) + " ms", number(json["samples_per_s"], 0) + " samples/s");
  if (json.contains("run_seconds")) row("run", human_seconds(json["run_seconds"]), "without evaluations");
  out << "\nassumed\n";
  for (const Json& line : json["assumptions"]) out << "  " << text(line) << "\n";
}

}  // namespace

int run_plan(const PlanOptions& options) {
  require((options.seq_len > 0) == (options.vocab_size > 0), ExitCode::usage,
          "--seq-len and --vocab-size describe the data together; give both or none");
  const config::LoadedConfig loaded = config::load_config(options.config_files, options.overrides);
  require(
      loaded.config.runtime.device != "cpu", ExitCode::usage,
      "plan estimates training on a GPU, but runtime.device is 'cpu'; on the CPU 'hrm_train bench step' measures it");
  require(loaded.config.ops.backend == "fused", ExitCode::usage,
          "plan estimates our kernels, but ops.backend is 'reference', which takes more memory and time; set it to "
          "'fused', "
          "or measure it with 'hrm_train bench step'");
  const PlanInput input = read_input(options, loaded.config, choose_gpu(options.gpu));
  const Json json = plan_json(input, make_plan(input));
  print_plan(json, std::cout);
  if (!options.json_out.empty()) write_text_atomic(options.json_out, json.dump(2) + "\n");
  return static_cast<int>(ExitCode::done);
}

}  // namespace hrm::train
