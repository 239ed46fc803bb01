// hrm_train plan.
#include <functional>
#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "commands/plan/link_model.h"
#include "commands/plan/plan.h"
#include "commands/plan/ranks.h"
#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/base/text.h"
#include "hrm/build_config.h"
#include "hrm/commands/commands.h"
#include "hrm/config/load.h"
#include "hrm/metrics/metric_text.h"
#include "hrm/tasks/registry.h"
#include "hrm/train/batch_split.h"

#if HRM_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

namespace hrm::commands {
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

Json items_json(const std::vector<PlanItem>& items, const char* unit) {
  Json out = Json::array();
  for (const PlanItem& item : items) out.push_back({{"name", item.name}, {unit, item.value}, {"note", item.note}});
  return out;
}

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

const char* kind_name(parallel::CommOperation::Kind kind) {
  switch (kind) {
    case parallel::CommOperation::Kind::all_reduce:
      return "all-reduce";
    case parallel::CommOperation::Kind::reduce_scatter:
      return "reduce-scatter";
    case parallel::CommOperation::Kind::all_gather:
      return "all-gather";
    case parallel::CommOperation::Kind::all_to_all:
      return "all-to-all";
    case parallel::CommOperation::Kind::exchange:
      return "send and receive";
    case parallel::CommOperation::Kind::broadcast:
      break;
  }
  return "broadcast";
}

// One row for what has the same purpose at one time, also where others travel between.
Json exchanges_json(const RanksPlan& plan) {
  Json rows = Json::array();
  for (size_t i = 0; i < plan.exchanges.size(); ++i) {
    const StepExchange& exchange = plan.exchanges[i];
    const char* kind = kind_name(exchange.operation.kind);
    const char* moment = exchange.moment == StepExchange::Moment::in_backward      ? "backward pass"
                         : exchange.moment == StepExchange::Moment::before_forward ? "before the forward pass"
                         : exchange.moment == StepExchange::Moment::in_forward     ? "forward pass"
                                                                                   : "after the backward pass";
    size_t place = rows.size();
    for (size_t row = rows.size(); row-- > 0 && rows[row]["moment"] == moment;) {
      if (rows[row]["what"] == exchange.what && rows[row]["kind"] == kind) place = row;
    }
    if (place == rows.size()) {
      rows.push_back(
          {{"what", exchange.what}, {"kind", kind}, {"moment", moment}, {"calls", 0}, {"bytes", 0}, {"ms", 0.0}});
    }
    Json& row = rows[place];
    row["calls"] = row["calls"].get<int64_t>() + 1;
    row["bytes"] = row["bytes"].get<int64_t>() + exchange.operation.bytes;
    row["ms"] = row["ms"].get<double>() + plan.timeline.exchange_ms[i];
  }
  return rows;
}

Json link_json(const Link& link) {
  Json points = Json::array();
  for (const Link::Point& point : link.measured)
    points.push_back({{"bytes", point.bytes}, {"us", 1e6 * point.seconds}});
  return {{"gbs", 1e-9 * link.bytes_per_s},
          {"hop_us", 1e6 * link.hop_s},
          {"origin", link.origin},
          {"measured", std::move(points)}};
}

Json ranks_plan_json(const RanksPlan& plan) {
  Json json{{"ranks", plan.layout.ranks}, {"nodes", plan.layout.nodes}};
  json.update(plan_json(plan.input, plan.own));
  for (const char* key : {"gpu", "model", "parameters", "positions", "run_seconds", "assumptions"}) json.erase(key);
  const double steps = static_cast<double>(plan.input.config.train.steps);
  json["samples_per_rank"] = plan.input.own_samples();
  json["compute_ms"] = plan.own.step_ms;
  json["backward_ms"] = plan.own.backward_ms;
  json["exchanges"] = exchanges_json(plan);
  json["calls"] = plan.exchanges.size();
  int64_t bytes = 0;
  for (const StepExchange& exchange : plan.exchanges) bytes += exchange.operation.bytes;
  json["bytes"] = bytes;
  json["node_bytes"] = plan.sent.node;
  json["network_bytes"] = plan.sent.network;
  json["communication_ms"] = plan.timeline.comm_ms;
  json["hidden_ms"] = plan.timeline.comm_ms - plan.timeline.exposed_ms;
  json["exposed_ms"] = plan.timeline.exposed_ms;
  json["step_ms"] = plan.step_ms;
  json["samples_per_s"] = plan.samples_per_s;
  json["efficiency"] = plan.efficiency;
  if (steps > 0) json["run_seconds"] = steps * plan.step_ms * 1e-3;
  return json;
}

Json ranks_json(const RanksInput& input, const std::vector<RanksPlan>& plans) {
  const config::Config& config = input.one.config;
  Json json;
  json["gpu"] = input.one.gpu.name;
  json["model"] = input.one.model->name();
  json["parameters"] = input.one.parameters;
  json["positions"] = input.one.model->positions();
  json["batch"] = input.weak ? "of each rank" : "of all ranks";
  json["bucket_mb"] = config.parallel.bucket_mb;
  json["reduce"] = name_of(config.parallel.reduce);
  json["zero"] = config.parallel.zero;
  json["ranks_per_node"] = input.per_node;
  json["start_us"] = 1e6 * input.links.start_s;
  json["link"] = link_json(input.links.node);
  json["network"] = link_json(input.links.network);
  json["plans"] = Json::array();
  for (const RanksPlan& plan : plans) json["plans"].push_back(ranks_plan_json(plan));
  json["assumptions"] = plans.front().own.assumptions;
  const auto link_text = [](const Link& link, const char* name) {
    return cat(name, ": ", metrics::fixed(1e-9 * link.bytes_per_s, 1), " GB/s of a GPU in one direction",
               link.measured.empty() ? "" : " with the largest size", ", ", metrics::fixed(1e6 * link.hop_s, 2),
               " us a hop (", link.origin, ")");
  };
  json["assumptions"].push_back(link_text(input.links.node, "links in a node"));
  json["assumptions"].push_back(link_text(input.links.network, "network"));
  json["assumptions"].push_back(
      cat("an operation takes ", metrics::fixed(1e6 * input.links.start_s, 1),
          " us to start, its hops (an all-reduce up and down a tree, all others around a ring), and the time of the "
          "slower link"));
  json["assumptions"].push_back(
      "gradients that travel during the backward pass do not slow it down; NCCL's own memory is not counted, nor the "
      "data of other ranks that hosts prepare with data.reference_semantics=false");
  return json;
}

void print_ranks(const Json& json, std::ostream& out) {
  const Json& plans = json["plans"];
  constexpr int kName = 30, kColumn = 12;
  const auto row = [&](const std::string& name, const std::function<std::string(const Json&)>& value) {
    out << std::left << std::setw(kName) << name << std::right;
    for (const Json& plan : plans) out << std::setw(kColumn) << value(plan);
    out << "\n";
  };
  const auto plain = [](const char* key) { return [key](const Json& plan) { return plan[key].dump(); }; };
  const auto bytes = [](const char* key) { return [key](const Json& plan) { return bytes_text(plan[key]); }; };
  const auto ms = [](const char* key) {
    return [key](const Json& plan) { return metrics::fixed(plan[key], 2) + " ms"; };
  };
  out << text_of(json["model"]) << ", " << json["parameters"].dump() << " parameters, " << json["positions"].dump()
      << " positions, on " << text_of(json["gpu"]) << ", up to " << json["ranks_per_node"].dump()
      << " in a node; the configured batch is that " << text_of(json["batch"]) << "\n\n";
  row("ranks", plain("ranks"));
  row("nodes", plain("nodes"));
  row("global batch", plain("global_batch_size"));
  row("samples of a rank", plain("samples_per_rank"));
  row("  in parts of", plain("micro_batch_size"));
  out << "\n";
  row("memory of a rank", bytes("device_used_bytes"));
  row(cat("  of ", bytes_text(plans.front()["device_total_bytes"])),
      [](const Json& plan) { return plan["fits"].get<bool>() ? "fits" : "does NOT fit"; });
  for (const Json& plan : plans) {
    if (plan["fits"].get<bool>()) continue;
    const int64_t micro = plan["fitting_micro_batch_size"].get<int64_t>();
    out << "  " << plan["ranks"].dump()
        << " ranks: " << (micro > 0 ? cat("with train.micro_batch_size=", micro, " it fits") : "no micro-batch fits")
        << "\n";
  }
  out << "\n";
  row("collectives of a step", plain("calls"));
  row("their bytes", bytes("bytes"));
  row("  sent by a GPU in its node", bytes("node_bytes"));
  row("  sent by a GPU to others", bytes("network_bytes"));
  out << "\n";
  row("computing", ms("compute_ms"));
  row("communication", ms("communication_ms"));
  row("  hidden by the backward pass", ms("hidden_ms"));
  row("  exposed", ms("exposed_ms"));
  row("= step", ms("step_ms"));
  row("samples/s", [](const Json& plan) { return metrics::fixed(plan["samples_per_s"], 0); });
  row("efficiency", [](const Json& plan) { return metrics::fixed(100 * plan["efficiency"].get<double>(), 1) + " %"; });
  const Json& last = plans.back();
  if (!last["exchanges"].empty()) out << "\ncollectives of a step with " << last["ranks"].dump() << " ranks\n";
  for (const Json& exchange : last["exchanges"]) {
    out << "  " << std::left << std::setw(18) << text_of(exchange["what"]) << std::right << std::setw(4)
        << exchange["calls"].dump() << " x " << text_of(exchange["kind"]) << std::setw(12)
        << bytes_text(exchange["bytes"]) << std::setw(12) << metrics::fixed(exchange["ms"], 3) << " ms  "
        << text_of(exchange["moment"]) << "\n";
  }
  print_assumptions(json, out);
}

Json plan_ranks(const PlanOptions& options, const PlanInput& one) {
  RanksInput input{one, options.ranks_per_node, options.weak, {}};
  input.links = make_links(one.gpu, {.node_gbs = options.link_gbs,
                                     .network_gbs = options.network_gbs,
                                     .node_hop_us = options.hop_us,
                                     .network_hop_us = options.network_hop_us,
                                     .measured = {options.bandwidths.begin(), options.bandwidths.end()}});
  std::vector<RanksPlan> plans;
  for (const int64_t ranks : options.ranks) plans.push_back(make_ranks_plan(input, ranks));
  return ranks_json(input, plans);
}

}  // namespace

int run_plan(const PlanOptions& options) {
  const config::LoadedConfig loaded = config::load_config(options.config_files, options.overrides);
  require(loaded.config.parallel.tensor == 1, ExitCode::usage,
          "plan counts whole layers, but parallel.tensor = ", loaded.config.parallel.tensor, " cuts them; set it to 1");
  require(
      loaded.config.runtime.device != config::DeviceChoice::cpu, ExitCode::usage,
      "plan estimates training on a GPU, but runtime.device is 'cpu'; on the CPU 'hrm_train bench step' measures it");
  require(loaded.config.ops.backend == config::OpsBackend::fused, ExitCode::usage,
          "plan estimates our kernels, but ops.backend is 'reference', which takes more memory and time; set it to "
          "'fused', or measure it with 'hrm_train bench step'");
  const PlanInput input = read_plan_input(options, loaded.config, choose_gpu(options.gpu));
  Json json;
  if (options.ranks.empty()) {
    json = plan_json(input, make_plan(input));
    print_plan(json, std::cout);
  } else {
    json = plan_ranks(options, input);
    print_ranks(json, std::cout);
  }
  if (!options.json_out.empty()) write_text_atomic(options.json_out, json.dump(2) + "\n");
  return static_cast<int>(ExitCode::done);
}

}  // namespace hrm::commands
