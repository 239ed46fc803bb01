// hrm_train bench step, hrm_train bench eval.
#include "commands/bench/step.h"

#include <ATen/ops/full.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <iomanip>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

#include "commands/bench/timer.h"
#include "hrm/base/build_info.h"
#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/base/log.h"
#include "hrm/base/text.h"
#include "hrm/commands/commands.h"
#include "hrm/config/load.h"
#include "hrm/metrics/metric_text.h"
#include "hrm/ops/start.h"
#include "hrm/runtime/memory.h"
#include "hrm/runtime/memory_history.h"
#include "hrm/runtime/profiler.h"
#include "hrm/runtime/work_counts.h"
#include "hrm/tasks/puzzle.h"
#include "hrm/tasks/registry.h"
#include "hrm/train/trainer.h"
#include "train/ranks.h"

namespace hrm::commands {
namespace {

using Json = nlohmann::ordered_json;

Json spread_json(const Spread& spread) {
  return {{"mean", spread.mean}, {"median", spread.median}, {"p10", spread.p10},
          {"p90", spread.p90},   {"min", spread.min},       {"max", spread.max}};
}

Json memory_json(const MemoryReport& memory) {
  return {{"allocated_bytes", memory.allocated},       {"allocated_peak_bytes", memory.allocated_peak},
          {"reserved_bytes", memory.reserved},         {"reserved_peak_bytes", memory.reserved_peak},
          {"inactive_bytes", memory.inactive},         {"fragmentation", memory.fragmentation()},
          {"allocation_retries", memory.retries},      {"device_used_bytes", memory.device_used},
          {"device_total_bytes", memory.device_total}, {"host_resident_peak_bytes", memory.host_resident_peak}};
}

constexpr size_t kAllocationRows = 20;

Json at_peak_json(const AllocationsAtPeak& peak) {
  Json groups = Json::array();
  for (const AllocationGroup& group : peak.groups) {
    groups.push_back({{"phase", group.phase},
                      {"operation", group.operation},
                      {"bytes_each", group.each},
                      {"tensors", group.tensors},
                      {"bytes", group.bytes()}});
  }
  return {{"bytes", peak.bytes},
          {"tensors", peak.tensors},
          {"groups", groups},
          {"table", allocations_table(peak, kAllocationRows)}};
}

// unit: "step" or "pass".
Json rows_json(const std::vector<ProfileRow>& rows, int64_t count, const std::string& unit) {
  double total = 0;
  for (const ProfileRow& row : rows) total += row.ms;
  Json out = Json::array();
  for (const ProfileRow& row : rows) {
    out.push_back({{"name", row.name},
                   {"ms_per_" + unit, row.ms / static_cast<double>(count)},
                   {"share", total > 0 ? row.ms / total : 0},
                   {"calls_per_" + unit, static_cast<double>(row.calls) / static_cast<double>(count)}});
  }
  return out;
}

// "1 step", "30 steps".
std::string counted(const Json& count, const char* what) {
  return cat(count.dump(), " ", what, count == 1 ? "" : "s");
}

std::string flops_text(double flops_per_s) {
  return flops_per_s >= 1e12 ? metrics::fixed(flops_per_s * 1e-12, 1) + " TFLOP/s"
                             : metrics::fixed(flops_per_s * 1e-9, 1) + " GFLOP/s";
}

Json profile_json(const StepProfile& profile, int64_t count, const std::string& unit) {
  return {{"gpu", profile.gpu},
          {unit == "pass" ? "passes" : "steps", count},
          {"launches_per_" + unit, static_cast<double>(profile.launches) / static_cast<double>(count)},
          {"waits", rows_json(profile.waits, count, unit)},
          {"busy_share", profile.span_ms > 0 ? profile.busy_ms / profile.span_ms : 0},
          {"gap_ms_per_" + unit, (profile.span_ms - profile.busy_ms) / static_cast<double>(count)},
          {"groups", rows_json(profile.by_group, count, unit)},
          {"kernels", rows_json(profile.by_name, count, unit)}};
}

void print_rows(std::ostream& out, const char* title, const Json& rows, size_t most, const std::string& unit) {
  out << "\n"
      << std::setw(9) << "ms/" + unit << std::setw(8) << "share" << std::setw(12) << "calls/" + unit << "  " << title
      << "\n";
  for (size_t i = 0; i < std::min(most, rows.size()); ++i) {
    const Json& row = rows[i];
    std::string name = printable(short_kernel_name(row["name"].get<std::string>()));
    if (name.size() > 100) name.replace(97, std::string::npos, "...");
    out << std::setw(9) << metrics::fixed(row["ms_per_" + unit].get<double>(), 3) << std::setw(7)
        << metrics::fixed(100 * row["share"].get<double>(), 1) << "%" << std::setw(12)
        << metrics::fixed(row["calls_per_" + unit].get<double>(), 1) << "  " << name << "\n";
  }
}

// Of the steps between two readings, in the order of a step.
Json phases_json(const PhaseTimes& before, const PhaseTimes& after, int64_t steps) {
  std::vector<ProfileRow> rows;
  double total = 0;
  for (const auto& [name, ms] : after) {
    const double taken = ms - tasks::find_value(before, name).value_or(0);
    rows.push_back({.name = name, .calls = 0, .ms = taken / static_cast<double>(steps)});
    total += taken / static_cast<double>(steps);
  }
  Json out = Json::array();
  for (const ProfileRow& row : rows) {
    out.push_back({{"name", row.name}, {"ms_per_step", row.ms}, {"share", total > 0 ? row.ms / total : 0}});
  }
  return out;
}

void print_phases(const Json& json, std::ostream& out) {
  if (!json.contains("phases")) return;
  out << "\n"
      << std::setw(9) << "ms/step" << std::setw(8) << "share"
      << "  phase, by the device's clock\n";
  double total = 0;
  for (const Json& row : json["phases"]) {
    total += row["ms_per_step"].get<double>();
    out << std::setw(9) << metrics::fixed(row["ms_per_step"].get<double>(), 3) << std::setw(7)
        << metrics::fixed(100 * row["share"].get<double>(), 1) << "%  " << row["name"].get<std::string>() << "\n";
  }
  out << std::setw(9) << metrics::fixed(total, 3) << std::setw(8) << ""
      << "  all (mean step " << metrics::fixed(json["step_ms"]["mean"].get<double>(), 3) << " ms)\n";
}

// What is at the top of every result.
Json bench_head_json(const config::Config& config, const Runtime& runtime, int ranks = 1) {
  Json json;
  json["device"] = runtime.device_name;
  json["precision"] = runtime.precision.name;
  for (const auto& [key, value] : build_info()) json["build"][key] = value;
  json["model"] = tasks::task_spec(config).model_name(config);
  json["global_batch_size"] = config.train.global_batch_size;
  json["micro_batch_size"] =
      config.train.micro_batch_size > 0 ? config.train.micro_batch_size : config.train.global_batch_size / ranks;
  return json;
}

void write_benchmark(const Json& json, const std::string& file) {
  if (!file.empty()) write_text_atomic(file, json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

void print_step_row(std::ostream& out, const char* name, const std::string& text) {
  out << std::left << std::setw(14) << name << std::right << text << "\n";
}

void print_profile(const Json& json, std::ostream& out, const std::string& unit) {
  if (!json.contains("profile")) return;
  const Json& profile = json["profile"];
  if (profile["gpu"].get<bool>()) {
    std::string waits;
    for (const Json& wait : profile["waits"]) {
      waits += cat(waits.empty() ? "" : ", ", metrics::fixed(wait["calls_per_" + unit], 1), " ",
                   wait["name"].get<std::string>(), " (", metrics::fixed(wait["ms_per_" + unit], 3), " ms)");
    }
    print_step_row(out, "host",
                   cat(metrics::fixed(profile["launches_per_" + unit], 1), " launches per ", unit,
                       "; waits for the device: ", waits.empty() ? "none" : waits));
    print_step_row(out, "GPU busy",
                   cat(metrics::fixed(100 * profile["busy_share"].get<double>(), 1), " % of what was recorded (",
                       metrics::fixed(profile["gap_ms_per_" + unit], 3), " ms of gaps per ", unit, ")"));
  }
  print_rows(out, "kind of work", profile["groups"], 30, unit);
  print_rows(out, profile["gpu"].get<bool>() ? "kernel" : "operation, without what it calls", profile["kernels"], 20,
             unit);
}

void print_step(const Json& json, std::ostream& out) {
  const auto row = [&](const char* name, const std::string& text) { print_step_row(out, name, text); };
  const Json& ms = json["step_ms"];
  const bool several = json["ranks"] != 1, lone = json.contains("lone_rank");
  row("device", cat(several && !lone ? cat(json["ranks"].dump(), " times ") : std::string(),
                    json["device"].get<std::string>(), ", ", json["precision"].get<std::string>()));
  if (lone) {
    row("ranks", cat("rank ", json["lone_rank"].dump(), " of ", json["ranks"].dump(),
                     " alone: nothing is sent, so times leave out the exchanges, and losses mean nothing"));
  }
  row("step", cat(metrics::fixed(ms["median"], 2), " ms (p10 ", metrics::fixed(ms["p10"], 2), ", p90 ",
                  metrics::fixed(ms["p90"], 2), "; ", counted(json["steps"], "step"), " of ",
                  counted(json["global_batch_size"], "sample"), ")"));
  row("throughput",
      cat(metrics::fixed(json["samples_per_s"], 0), " samples/s, ", flops_text(1e12 * json["tflops"].get<double>()),
          json["mfu"].is_null() ? std::string()
                                : cat(", MFU ", metrics::fixed(100 * json["mfu"].get<double>(), 1), " % of ",
                                      flops_text(json["peak_flops_assumed"].get<double>()))));
  row("data wait", metrics::fixed(json["data_wait_ms"], 2) + " ms per step");
  row("memory", json["memory_text"].get<std::string>());
  if (json.contains("counts")) {
    const Json& counts = json["counts"];
    row("counts", cat(counts["calls"].get<int64_t>(), " operations, ", counts["allocations"].get<int64_t>(),
                      " allocations of ", human_bytes(counts["bytes"].get<uint64_t>()), ", ",
                      human_bytes(counts["peak_bytes"].get<uint64_t>()), " at most, asked for in a step"));
  }
  print_phases(json, out);
  if (json.contains("memory_at_peak")) {
    const Json& peak = json["memory_at_peak"];
    out << "\nat the peak of the warm-up, " << human_bytes(peak["bytes"].get<uint64_t>()) << " in "
        << peak["tensors"].dump() << " tensors\n"
        << peak["table"].get<std::string>();
  }
  print_profile(json, out, "step");
}

// The same answer on all ranks: rank 0's.
bool agreed(parallel::Comm& comm, bool answer) {
  const at::Tensor value = at::full({1}, answer ? 1 : 0, at::kLong);
  comm.broadcast(value, /*root=*/0);
  return value.item<int64_t>() != 0;
}

// Of one step; those of a replay are what the host does beside it.
Json count_step(train::Trainer& trainer, at::Device device) {
  const WorkCounter counter(device);
  trainer.run_steps(1);
  const WorkCounts counts = counter.counts();
  return {{"calls", counts.calls},
          {"allocations", counts.allocations},
          {"bytes", counts.bytes},
          {"peak_bytes", counts.peak_bytes}};
}

int bench_step(const BenchStepOptions& options, const config::LoadedConfig& loaded, train::Ranks& ranks,
               const std::function<void(const Json&)>& take) {
  const config::Config& config = loaded.config;
  train::check_same_program(*ranks.comm, loaded.to_json());
  const Runtime runtime = train::start_device(ranks, config);
  parallel::Comm& comm = *ranks.comm;
  const std::shared_ptr<const parallel::Mesh> mesh = train::make_mesh(ranks, config);
  const std::unique_ptr<tasks::Task> owned = train::make_task(config, runtime, *mesh);
  tasks::Task& task = *owned;
  train::Trainer trainer(config, loaded.to_json(), runtime, task, /*run_dir=*/"", ranks.comm, mesh);
  trainer.set_watchdog(ranks.watchdog.get());
  const bool lone = !comm.alone() && ranks.launch.ranks == 1;
  if (ranks.launch.ranks > 1) log::info("ranks        ", parallel::describe(ranks.launch), "; ", comm.describe());
  log::info(task.describe());
  trainer.start_fresh();
  log::info("measuring    ", counted(options.warmup, "step"), " of warm-up, ", metrics::fixed(options.settle, 1),
            " s to settle, ", counted(options.steps, "timed step"), ", ", options.profile_steps, " recorded");

  trainer.run_steps(options.warmup);
  synchronize(runtime.device);
  AllocationsAtPeak at_peak;
  if (options.memory) {
    at_peak = allocations_at_peak(memory_snapshot(runtime.device));
    stop_memory_history(runtime.device);
  }
  const auto settled = std::chrono::steady_clock::now() + std::chrono::duration<double>(options.settle);
  int64_t settling = 0;
  const auto settles = [&] { return settling < kSettlingSteps && std::chrono::steady_clock::now() < settled; };
  for (; agreed(comm, settles()); ++settling) {
    trainer.run_steps(1);
    synchronize(runtime.device);
  }
  const double waited_before = trainer.data_wait_ms();
  const PhaseTimes phases_before = trainer.phases() ? trainer.phases()->totals() : PhaseTimes();
  Timeline timeline(runtime.device);
  timeline.mark();
  for (int64_t i = 0; i < options.steps; ++i) {
    trainer.run_steps(1);
    timeline.mark();
  }
  const std::vector<double> intervals_ms = timeline.intervals_ms();
  const Spread step_ms = spread_of(intervals_ms);
  const double data_wait_ms = trainer.data_wait_ms() - waited_before;
  const MemoryReport memory = memory_report(runtime.device);

  const auto batch = static_cast<double>(config.train.global_batch_size);
  const double flops_per_s = task.flops_per_step() / (step_ms.median * 1e-3);
  const double peak_flops = runtime.peak_flops * comm.ranks();
  Json json = bench_head_json(config, runtime, comm.ranks());
  json["parameters"] = task.parameters().count();
  json["ranks"] = comm.ranks();
  if (!comm.alone()) {
    if (lone) json["lone_rank"] = comm.rank();
    json["gradient_buckets"] = trainer.reducer().buckets();
    json["started_in_backward"] = trainer.reducer().started_early();
  }
  json["steps"] = options.steps;
  json["warmup"] = options.warmup + settling;
  json["step_ms"] = spread_json(step_ms);
  json["step_ms_each"] = intervals_ms;
  json["samples_per_s"] = batch / (step_ms.median * 1e-3);
  json["data_wait_ms"] = data_wait_ms / static_cast<double>(options.steps);
  json["flops_per_step"] = task.flops_per_step();
  json["tflops"] = flops_per_s * 1e-12;
  json["mfu"] = peak_flops > 0 ? Json(flops_per_s / peak_flops) : Json();
  json["peak_flops_assumed"] = peak_flops;
  if (trainer.phases()) json["phases"] = phases_json(phases_before, trainer.phases()->totals(), options.steps);
  json["memory"] = memory_json(memory);
  json["memory_text"] = memory_text(memory);
  if (options.memory) json["memory_at_peak"] = at_peak_json(at_peak);

  if (options.profile_steps > 0 && config.profiling.nsight_window) {
    nsight_window_begin(runtime.device);
    trainer.run_steps(options.profile_steps);
    nsight_window_end(runtime.device);
  } else if (options.profile_steps > 0) {
    StepTrace trace(runtime.device);
    trainer.run_steps(options.profile_steps);
    json["profile"] = profile_json(trace.profile(), options.profile_steps, "step");
  }
  if (options.profile_steps > 0) json["counts"] = count_step(trainer, runtime.device);
  log::progress_done();
  synchronize(runtime.device);
  if (ranks.launch.rank == 0) take(json);
  return static_cast<int>(ExitCode::done);
}

}  // namespace

int measure_step(const BenchStepOptions& options, const std::function<void(const Json&)>& take) {
  const parallel::Launch launch = parallel::detect_launch();
  config::LoadedConfig loaded = config::load_config(options.config_files, options.overrides);
  config::Config& config = loaded.config;
  if (options.memory) config.profiling.memory = true;
  config.model.depth_curriculum = false;  // steps of full depth are measured
  // Further than the benchmark goes, so that no step of it is the run's last; a run's length need not be given.
  const int64_t measured = options.warmup + kSettlingSteps + options.steps + options.profile_steps;
  config.train.steps = std::max(config.train.steps, std::min(config.optim.warmup_steps, kMostSteps) + measured + 1);
  tasks::check_settings(loaded);
  if (launch.rank > 0) log::set_level(log::Level::error);
  const bool lone = options.ranks > 1;
  // Sums over parts of a model that are not there may overflow.
  if (lone) config.train.max_nonfinite_steps = std::numeric_limits<int64_t>::max();
  require(!lone || launch.ranks == 1, ExitCode::usage, "bench step --ranks measures one rank without the others, but ",
          "this launch has ", launch.ranks, " ranks; leave out the launcher or --ranks");
  require(options.rank < options.ranks, ExitCode::usage, "bench step --rank ", options.rank, " is none of --ranks ",
          options.ranks, "; ranks count from 0");
  return train::run_as_ranks(launch, config, train::job_of_run("bench step", config.run), [&](train::Ranks& ranks) {
    if (!lone) return bench_step(options, loaded, ranks, take);
    train::Ranks one = train::lone_rank(options.rank, options.ranks);
    return bench_step(options, loaded, one, take);
  });
}

int run_bench_step(const BenchStepOptions& options) {
  return measure_step(options, [&](const Json& json) {
    print_step(json, std::cout);
    write_benchmark(json, options.json_out);
  });
}

int run_bench_eval(const BenchEvalOptions& options) {
  config::LoadedConfig loaded = config::load_config(options.config_files, options.overrides);
  config::Config& config = loaded.config;
  // Need not be given.
  config.train.steps = std::max(config.train.steps, std::min(config.optim.warmup_steps, kMostSteps) + 1);
  tasks::check_settings(loaded);
  const Runtime runtime = ops::start_runtime_and_ops(config);
  const std::unique_ptr<tasks::Task> owned = tasks::make_task(config, runtime);
  tasks::Task& task = *owned;
  require(task.can_evaluate(), ExitCode::usage, task.nothing_to_evaluate());
  task.parameters().refresh_compute();
  task.prepare_untrained_evaluation();
  log::info(task.describe());

  int64_t samples = 0;
  tasks::NamedValues result;
  const auto pass = [&] {
    result = task.evaluate([&](const tasks::EvalProgress& progress) { samples = progress.total; });
  };
  pass();
  Timeline timeline(runtime.device);
  timeline.mark();
  for (int64_t i = 0; i < options.passes; ++i) {
    pass();
    timeline.mark();
  }
  const Spread ms = spread_of(timeline.intervals_ms());
  const MemoryReport memory = memory_report(runtime.device);
  Json json = bench_head_json(config, runtime);
  json["samples"] = samples;
  std::string sizes;
  for (const auto& [name, size] : task.evaluation_sizes()) {
    json[name + "s"] = size;
    sizes += ", " + counted(json[name + "s"], name.c_str());
  }
  json["passes"] = options.passes;
  json["pass_ms"] = spread_json(ms);
  json["samples_per_s"] = static_cast<double>(samples) / (ms.median * 1e-3);
  const double flops = task.flops_per_evaluated_sample() * static_cast<double>(samples);
  if (flops > 0) json["tflops_per_s"] = 1e-12 * flops / (ms.median * 1e-3);
  const auto tokens = tasks::find_value(result, "tokens");
  if (tokens) {
    json["tokens"] = *tokens;
    json["tokens_per_s"] = *tokens / (ms.median * 1e-3);
  }
  json["memory"] = memory_json(memory);
  if (options.profile_passes > 0) {
    StepTrace trace(runtime.device);
    for (int64_t i = 0; i < options.profile_passes; ++i) pass();
    json["profile"] = profile_json(trace.profile(), options.profile_passes, "pass");
  }
  std::cout << "device        " << runtime.device_name << ", " << runtime.precision.name << "\n"
            << "evaluation    " << metrics::fixed(ms.median, 1) << " ms for " << counted(samples, "sample") << sizes
            << (config.eval.early_halt ? " at most" : "") << " (min " << metrics::fixed(ms.min, 1) << ", max "
            << metrics::fixed(ms.max, 1) << "; " << options.passes << (options.passes == 1 ? " pass" : " passes")
            << ")\n"
            << "throughput    " << metrics::fixed(json["samples_per_s"], 0) << " samples/s"
            << (tokens ? cat(", ", metrics::fixed(json["tokens_per_s"], 0), " labelled tokens/s") : std::string())
            << (flops > 0 ? cat(", ", metrics::fixed(json["tflops_per_s"], 1), " TFLOP/s in matrix products")
                          : std::string())
            << "\n"
            << "memory        " << memory_text(memory) << "\n";
  print_profile(json, std::cout, "pass");
  write_benchmark(json, options.json_out);
  return static_cast<int>(ExitCode::done);
}

}  // namespace hrm::commands
