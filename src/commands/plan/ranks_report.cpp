#include <algorithm>
#include <functional>
#include <iomanip>
#include <map>
#include <set>
#include <tuple>

#include "commands/plan/report.h"
#include "hrm/base/error.h"
#include "hrm/base/text.h"
#include "hrm/metrics/metric_text.h"

namespace hrm::commands {
namespace {

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

const char* moment_name(StepExchange::Moment moment) {
  switch (moment) {
    case StepExchange::Moment::before_forward:
      return "before the forward pass";
    case StepExchange::Moment::in_forward:
      return "forward pass";
    case StepExchange::Moment::in_backward:
      return "backward pass";
    case StepExchange::Moment::after_backward:
      break;
  }
  return "after the backward pass";
}

// An operation of all ranks has no axis.
std::string axis_text(const std::string& axis) {
  return axis.empty() ? "all" : axis;
}

Json axes_json(const RanksPlan& plan) {
  Json axes = Json::array();
  for (const auto& [axis, times] : plan.timeline.axes) {
    axes.push_back({{"axis", axis_text(axis)},
                    {"calls", times.calls},
                    {"bytes", times.bytes},
                    {"ms", times.ms},
                    {"exposed_ms", times.exposed_ms}});
  }
  return axes;
}

// One row for what has the same purpose at one time of a micro-batch, also where others travel between.
Json exchanges_json(const RanksPlan& plan) {
  Json rows = Json::array();
  std::map<std::tuple<std::string, std::string, std::string, std::string>, size_t> row_of;
  for (size_t i = 0; i < plan.exchanges.size(); ++i) {
    const StepExchange& exchange = plan.exchanges[i];
    const char* kind = kind_name(exchange.operation.kind);
    const char* moment = moment_name(exchange.moment);
    const std::string axis = axis_text(exchange.operation.axis);
    const auto key = std::tuple(exchange.what, std::string(kind), axis, std::string(moment));
    const auto [found, is_new] = row_of.try_emplace(key, rows.size());
    if (is_new) {
      rows.push_back({{"what", exchange.what},
                      {"kind", kind},
                      {"axis", axis},
                      {"moment", moment},
                      {"calls", 0},
                      {"bytes", 0},
                      {"ms", 0.0}});
    }
    Json& row = rows[found->second];
    row["calls"] = row["calls"].get<int64_t>() + exchange.times;
    row["bytes"] = row["bytes"].get<int64_t>() + exchange.times * exchange.operation.bytes;
    row["ms"] = row["ms"].get<double>() + static_cast<double>(exchange.times) * plan.timeline.exchange_ms[i];
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

}  // namespace

Json ranks_plan_json(const RanksPlan& plan) {
  Json json{{"ranks", plan.layout.ranks},
            {"nodes", plan.layout.nodes},
            {"tensor", plan.input.config.parallel.tensor},
            {"data_ranks", plan.input.data_ranks()},
            {"zero", plan.input.config.parallel.zero},
            {"replicas", plan.input.config.parallel.replicas}};
  json.update(plan_json(plan.input, plan.own));
  for (const char* key : {"gpu", "model", "positions", "run_seconds", "assumptions"}) json.erase(key);
  const double steps = static_cast<double>(plan.input.config.train.steps);
  json["samples_per_rank"] = plan.input.own_samples();
  json["compute_ms"] = plan.own.step_ms;
  json["forward_ms"] = plan.own.forward_ms;
  json["backward_ms"] = plan.own.backward_ms;
  json["exchanges"] = exchanges_json(plan);
  int64_t calls = 0, bytes = 0;
  for (const auto& [axis, times] : plan.timeline.axes) {
    calls += times.calls;
    bytes += times.bytes;
  }
  json["calls"] = calls;
  json["bytes"] = bytes;
  json["node_bytes"] = plan.sent.node;
  json["network_bytes"] = plan.sent.network;
  json["communication_ms"] = plan.timeline.comm_ms;
  json["hidden_ms"] = plan.timeline.comm_ms - plan.timeline.exposed_ms;
  json["exposed_ms"] = plan.timeline.exposed_ms;
  json["slowed_ms"] = plan.timeline.slowed_ms;
  json["axes"] = axes_json(plan);
  json["step_ms"] = plan.step_ms;
  json["samples_per_s"] = plan.samples_per_s;
  json["efficiency"] = plan.efficiency;
  if (steps > 0) json["run_seconds"] = steps * plan.step_ms * 1e-3;
  if (!plan.advice.empty()) json["advice"] = plan.advice;
  return json;
}

Json head_json(const RanksInput& input) {
  const config::Config& config = input.one.config;
  Json json;
  json["gpu"] = input.one.gpu.name;
  json["model"] = input.one.model->name();
  json["parameters"] = input.one.parameters;
  json["positions"] = input.one.model->positions();
  json["batch"] = input.weak ? "of each rank" : "of all ranks";
  json["bucket_mb"] = config.parallel.bucket_mb;
  json["reduce"] = name_of(config.parallel.reduce);
  json["ranks_per_node"] = input.per_node;
  json["start_us"] = 1e6 * input.links.start_s;
  json["link"] = link_json(input.links.node);
  json["network"] = link_json(input.links.network);
  return json;
}

void print_head(const Json& json, const std::string& gpus, std::ostream& out) {
  out << text_of(json["model"]) << ", " << json["parameters"].dump() << " parameters, " << json["positions"].dump()
      << " positions, on " << gpus << ", up to " << json["ranks_per_node"].dump()
      << " in a node; the configured batch is that " << text_of(json["batch"]) << "\n\n";
}

std::optional<double> exposed_ms(const Json& plan, const std::string& axis) {
  for (const Json& times : plan["axes"]) {
    if (times["axis"] == axis) return times["exposed_ms"].get<double>();
  }
  return std::nullopt;
}

Json assumptions_json(const RanksInput& input, const Plan& own, bool with_parts) {
  Json lines = own.assumptions;
  const auto link_text = [](const Link& link, const char* name) {
    return cat(name, ": ", metrics::fixed(1e-9 * link.bytes_per_s, 1), " GB/s of a GPU in one direction",
               link.measured.empty() ? "" : " with the largest size", ", ", metrics::fixed(1e6 * link.hop_s, 2),
               " us a hop (", link.origin, ")");
  };
  lines.push_back(link_text(input.links.node, "links in a node"));
  lines.push_back(link_text(input.links.network, "network"));
  lines.push_back(
      cat("an operation takes ", metrics::fixed(1e6 * input.links.start_s, 1),
          " us to start, its hops (an all-reduce up and down a tree, all others around a ring), and the time of the "
          "slower link"));
  lines.push_back(cat("while something travels, a rank computes at ", metrics::fixed(100 * kRateBesideExchange, 0),
                      " % of its speed, as two GPUs did; the data of other ranks that hosts prepare with "
                      "data.reference_semantics=false are not counted"));
  lines.push_back(cat("NCCL takes ", std::lround(tasks::kCommBytes / (1 << 20)),
                      " MiB for each communicator of a rank, as with two GPUs of a host"));
  if (with_parts) {
    lines.push_back(
        "parts of a model (parallel.tensor) wait for exchanges of activations where the code does; how much of a pass "
        "lies between two is the share of its matrix products; compared with one decoder on two GPUs alone");
  }
  return lines;
}

Json ranks_json(const RanksInput& input, const std::vector<RanksPlan>& plans) {
  Json json = head_json(input);
  json["zero"] = input.one.config.parallel.zero;
  json["plans"] = Json::array();
  for (const RanksPlan& plan : plans) json["plans"].push_back(ranks_plan_json(plan));
  json["assumptions"] = assumptions_json(input, plans.front().own, input.one.config.parallel.tensor > 1);
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
  print_head(json, text_of(json["gpu"]), out);
  row("ranks", plain("ranks"));
  row("nodes", plain("nodes"));
  const bool cut = std::any_of(plans.begin(), plans.end(), [](const Json& plan) { return plan["tensor"] > 1; });
  if (cut) {
    row("  parts of the model", plain("tensor"));
    row("  reading different rows", plain("data_ranks"));
    row("parameters of a rank", plain("parameters"));
  }
  if (std::any_of(plans.begin(), plans.end(), [](const Json& plan) { return plan["replicas"] > 1; })) {
    row("  groups that split a state", plain("replicas"));
  }
  row("global batch", plain("global_batch_size"));
  row("samples of a rank", plain("samples_per_rank"));
  row("  in parts of", plain("micro_batch_size"));
  out << "\n";
  row("memory of a rank", bytes("device_used_bytes"));
  row("  of it NCCL's", bytes("nccl_bytes"));
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
  row("  hidden by computing", ms("hidden_ms"));
  row("  exposed", ms("exposed_ms"));
  std::set<std::string> axes;
  for (const Json& plan : plans) {
    for (const Json& axis : plan["axes"]) axes.insert(text_of(axis["axis"]));
  }
  for (const std::string& axis : axes) {
    if (axes.size() < 2) break;
    row(cat("    ", axis == "all" ? "between all" : axis + " axis"), [&](const Json& plan) {
      const std::optional<double> exposed = exposed_ms(plan, axis);
      return exposed ? metrics::fixed(*exposed, 2) + " ms" : std::string("-");
    });
  }
  row("computing slower beside it", ms("slowed_ms"));
  row("= step", ms("step_ms"));
  row("samples/s", [](const Json& plan) { return metrics::fixed(plan["samples_per_s"], 0); });
  row("efficiency", [](const Json& plan) { return metrics::fixed(100 * plan["efficiency"].get<double>(), 1) + " %"; });
  const Json& last = plans.back();
  if (!last["exchanges"].empty()) out << "\ncollectives of a step with " << last["ranks"].dump() << " ranks\n";
  for (const Json& exchange : last["exchanges"]) {
    out << "  " << std::left << std::setw(18) << text_of(exchange["what"]) << std::right << std::setw(4)
        << exchange["calls"].dump() << " x " << text_of(exchange["kind"]) << std::setw(12)
        << bytes_text(exchange["bytes"]) << std::setw(12) << metrics::fixed(exchange["ms"], 3) << " ms  "
        << text_of(exchange["moment"]) << (axes.size() < 2 ? "" : ", axis: " + text_of(exchange["axis"])) << "\n";
  }
  for (const Json& plan : plans) {
    if (plan.contains("advice")) out << "\n" << plan["ranks"].dump() << " ranks: " << text_of(plan["advice"]) << "\n";
  }
  print_assumptions(json, out);
}

}  // namespace hrm::commands
