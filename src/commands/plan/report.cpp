#include "commands/plan/report.h"

#include <iomanip>

#include "hrm/base/error.h"
#include "hrm/base/text.h"
#include "hrm/metrics/metric_text.h"
#include "hrm/train/batch_split.h"

namespace hrm::commands {
namespace {

Json items_json(const std::vector<PlanItem>& items, const char* unit) {
  Json out = Json::array();
  for (const PlanItem& item : items) out.push_back({{"name", item.name}, {unit, item.value}, {"note", item.note}});
  return out;
}

}  // namespace

Json plan_json(const PlanInput& input, const Plan& plan) {
  const config::TrainConfig& train = input.config.train;
  const train::BatchSplit batch = train::split_batch(train, input.data_ranks());
  Json json;
  json["gpu"] = input.gpu.name;
  json["model"] = input.model->name();
  json["parameters"] = input.parameters;
  if (input.frozen_parameters > 0) json["frozen_parameters"] = input.frozen_parameters;
  json["positions"] = input.model->positions();
  json["global_batch_size"] = train.global_batch_size;
  json["micro_batch_size"] = batch.micro;
  json["memory"] = items_json(plan.memory, "bytes");
  json["tensors_peak_bytes"] = plan.tensors_peak;
  json["peak_moment"] = plan.peak_moment;
  json["reserved_bytes"] = plan.reserved;
  json["nccl_bytes"] = plan.nccl;
  json["device_used_bytes"] = plan.device_used;
  json["device_total_bytes"] = input.gpu.memory_bytes;
  json["fits"] = plan.device_used <= input.gpu.memory_bytes;
  json["fitting_micro_batch_size"] = plan.fitting_micro_batch;
  json["time"] = items_json(plan.time, "ms");
  json["step_ms"] = plan.step_ms;
  const double samples_per_s = static_cast<double>(train.global_batch_size) / (plan.step_ms * 1e-3);
  json["samples_per_s"] = samples_per_s;
  json["flops_per_step"] = input.flops_per_sample * static_cast<double>(train.global_batch_size);
  json["tflops"] = 1e-12 * input.flops_per_sample * samples_per_s;
  if (train.steps > 0) json["run_seconds"] = static_cast<double>(train.steps) * plan.step_ms * 1e-3;
  json["assumptions"] = plan.assumptions;
  return json;
}

std::string bytes_text(const Json& value) {
  return human_bytes(static_cast<uint64_t>(value.get<double>()));
}

std::string text_of(const Json& value) {
  return value.get<std::string>();
}

void print_assumptions(const Json& json, std::ostream& out) {
  out << "\nassumed\n";
  for (const Json& line : json["assumptions"]) out << "  " << text_of(line) << "\n";
}

void print_plan(const Json& json, std::ostream& out) {
  const auto row = [&](const std::string& name, const std::string& value, const std::string& note) {
    out << "  " << std::left << std::setw(26) << name << std::right << std::setw(12) << value
        << (note.empty() ? "" : "  ") << note << "\n";
  };
  out << text_of(json["model"]) << ", " << json["parameters"].dump() << " parameters, "
      << (json.contains("frozen_parameters") ? json["frozen_parameters"].dump() + " frozen, " : "")
      << json["positions"].dump() << " positions, batch " << json["global_batch_size"].dump() << " in parts of "
      << json["micro_batch_size"].dump() << ", on one " << text_of(json["gpu"]) << "\n\nmemory\n";
  for (const Json& item : json["memory"]) row(text_of(item["name"]), bytes_text(item["bytes"]), text_of(item["note"]));
  row("= peak in tensors", bytes_text(json["tensors_peak_bytes"]), "at: " + text_of(json["peak_moment"]));
  row("reserved", bytes_text(json["reserved_bytes"]), "by the allocator");
  row("in use", bytes_text(json["device_used_bytes"]),
      "of " + bytes_text(json["device_total_bytes"]) + (json["fits"].get<bool>() ? ": fits" : ": does NOT fit"));
  if (!json["fits"].get<bool>()) {
    const int64_t micro = json["fitting_micro_batch_size"].get<int64_t>();
    out << "  " << (micro > 0 ? cat("with train.micro_batch_size=", micro, " it fits") : "no micro-batch fits") << "\n";
  }
  out << "\ntime of a step\n";
  for (const Json& item : json["time"]) {
    row(text_of(item["name"]), metrics::fixed(item["ms"], 2) + " ms", text_of(item["note"]));
  }
  row("= step", metrics::fixed(json["step_ms"], 1) + " ms", metrics::fixed(json["samples_per_s"], 0) + " samples/s");
  row("FLOPs of its products", metrics::fixed(1e-12 * json["flops_per_step"].get<double>(), 3) + " T",
      metrics::fixed(json["tflops"], 1) + " TFLOP/s");
  if (json.contains("run_seconds")) row("run", human_seconds(json["run_seconds"]), "without evaluations");
  print_assumptions(json, out);
}

}  // namespace hrm::commands
