// hrm_train bench graphs.
#include <algorithm>
#include <chrono>
#include <functional>
#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "commands/bench/step.h"
#include "commands/bench/timer.h"
#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/base/log.h"
#include "hrm/base/text.h"
#include "hrm/commands/commands.h"
#include "hrm/config/load.h"
#include "hrm/metrics/metric_text.h"
#include "hrm/ops/start.h"
#include "hrm/runtime/captured_work.h"
#include "hrm/tasks/registry.h"
#include "hrm/train/trainer.h"

namespace hrm::commands {
namespace {

using Json = nlohmann::ordered_json;

// What no graph can hold, whatever the task.
constexpr std::pair<const char*, const char*> kNeverCaptured[] = {
    {"batch", "its copy to the device reads other memory of the host in each step"},
    {"metrics", "their copy to the host ends in other memory in each step"},
    {"checkpoint", "it reads all state once, and the host writes it"},
};

config::LoadedConfig load_batch_config(const BenchGraphsOptions& options, std::optional<int64_t> batch) {
  std::vector<std::string> overrides = options.overrides;
  if (batch) overrides.push_back(cat("train.global_batch_size=", *batch));
  config::LoadedConfig loaded = config::load_config(options.config_files, overrides);
  config::Config& config = loaded.config;
  config.model.depth_curriculum = false;  // steps of full depth are measured
  // Further than the benchmark goes, so that no step of it is the run's last; a run's length need not be given.
  const int64_t measured = options.warmup + kSettlingSteps + options.steps;
  config.train.steps = std::max(config.train.steps, std::min(config.optim.warmup_steps, kMostSteps) + measured + 1);
  tasks::check_settings(loaded);
  return loaded;
}

// Ends an evaluation after its first batch.
struct Enough {};

// Calls `look` behind the first batch, while what the evaluation captures exists.
void evaluate_a_batch(tasks::Task& task, const std::function<void()>& look) {
  task.prepare_untrained_evaluation();
  try {
    task.evaluate([&](const tasks::EvalProgress&) {
      look();
      throw Enough();
    });
  } catch (const Enough&) {
  }
}

std::string state_of(const CapturedWork& work, const Runtime& runtime) {
  if (runtime.device.is_cpu()) return "eager: CUDA graphs need a GPU";
  if (!work.enabled) return "eager: runtime.cuda_graphs is false";
  if (!work.reason.empty()) return cat("eager: ", work.reason);
  if (work.graphs > 0) return cat("captured: ", work.graphs, work.graphs == 1 ? " graph" : " graphs");
  return work.eager_runs > 0 ? "eager so far: it is captured after its warm-up (runtime.graph_warmup_steps)"
                             : "not run here";
}

Json works_json(const Runtime& runtime, bool evaluates, bool evaluation_has_graphs) {
  Json out = Json::array();
  for (const CapturedWork& work : captured_works()) {
    out.push_back({{"work", work.name},
                   {"state", state_of(work, runtime)},
                   {"graphs", work.graphs},
                   {"replays", work.replays},
                   {"eager_runs", work.eager_runs}});
  }
  if (evaluates && !evaluation_has_graphs) {
    out.push_back({{"work", "evaluation"}, {"state", "eager: its batches come in many shapes, each seldom"}});
  }
  for (const auto& [work, why] : kNeverCaptured) out.push_back({{"work", work}, {"state", cat("eager: ", why)}});
  return out;
}

class GraphTimes {
 public:
  GraphTimes(const BenchGraphsOptions& options, const config::LoadedConfig& loaded, const Runtime& runtime)
      : options_(options),
        runtime_(runtime),
        task_(tasks::make_task(loaded.config, runtime)),
        trainer_(loaded.config, loaded.to_json(), runtime, *task_, /*run_dir=*/"") {
    trainer_.start_fresh();
    trainer_.run_steps(options.warmup);
    synchronize(runtime.device);
    const auto settled = std::chrono::steady_clock::now() + std::chrono::duration<double>(options.settle);
    for (int64_t i = 0; i < kSettlingSteps && std::chrono::steady_clock::now() < settled; ++i) {
      trainer_.run_steps(1);
      synchronize(runtime.device);
    }
  }

  // Median milliseconds of a step as a training makes it, with its batch.
  double step_ms() {
    return median_ms(options_.steps, [&] { trainer_.run_steps(1); });
  }
  // The same, `repeats` at a time, without the batch. Empty if graphs are on but this was not captured.
  std::optional<double> repeated_ms(int64_t repeats, int64_t warmup) {
    const bool captured = trainer_.run_repeated(repeats, warmup + 2);
    if (!captured && runtime_.device.is_cuda()) return std::nullopt;
    const int64_t count = std::max<int64_t>(options_.steps / repeats, 3);
    return median_ms(count, [&] { trainer_.run_repeated(repeats, 1); }) / static_cast<double>(repeats);
  }
  tasks::Task& task() { return *task_; }

 private:
  double median_ms(int64_t count, const std::function<void()>& work) {
    synchronize(runtime_.device);
    Timeline timeline(runtime_.device);
    timeline.mark();
    for (int64_t i = 0; i < count; ++i) {
      work();
      timeline.mark();
    }
    return spread_of(timeline.intervals_ms()).median;
  }

  const BenchGraphsOptions& options_;
  Runtime runtime_;
  std::unique_ptr<tasks::Task> task_;
  train::Trainer trainer_;
};

Json measure_batch(const BenchGraphsOptions& options, std::optional<int64_t> batch, Json& works) {
  const config::LoadedConfig loaded = load_batch_config(options, batch);
  const Runtime runtime = ops::start_runtime_and_ops(loaded.config);
  Json row{{"global_batch_size", loaded.config.train.global_batch_size}};
  {
    config::LoadedConfig eager = loaded;
    eager.config.runtime.cuda_graphs = false;
    row["eager_ms"] = GraphTimes(options, eager, runtime).step_ms();
  }
  GraphTimes graphs(options, loaded, runtime);
  row["graph_ms"] = graphs.step_ms();
  row["repeats"] = Json::array();
  for (const int64_t repeats : options.repeats) {
    const auto ms = graphs.repeated_ms(repeats, loaded.config.runtime.graph_warmup_steps);
    row["repeats"].push_back({{"steps_per_graph", repeats}, {"ms_per_step", ms ? Json(*ms) : Json()}});
  }
  if (works.empty()) {
    const auto runs = [] {
      int64_t sum = 0;
      for (const CapturedWork& work : captured_works()) sum += work.eager_runs + work.replays;
      return sum;
    };
    const int64_t before = runs();
    works = works_json(runtime, /*evaluates=*/false, /*evaluation_has_graphs=*/false);
    if (graphs.task().can_evaluate()) {
      evaluate_a_batch(graphs.task(), [&] { works = works_json(runtime, /*evaluates=*/true, runs() > before); });
    }
  }
  return row;
}

void print_graphs(const Json& json, std::ostream& out) {
  size_t widest = 0;
  for (const Json& work : json["works"]) widest = std::max(widest, work["work"].get<std::string>().size());
  for (const Json& work : json["works"]) {
    out << std::left << std::setw(static_cast<int>(widest) + 2) << work["work"].get<std::string>() << std::right
        << printable(work["state"].get<std::string>()) << "\n";
  }
  out << "\n" << std::setw(8) << "batch" << std::setw(11) << "eager ms" << std::setw(11) << "graph ms";
  for (const Json& repeat : json["batches"][0]["repeats"])
    out << std::setw(11) << cat("K=", repeat["steps_per_graph"].dump());
  out << "\n";
  for (const Json& row : json["batches"]) {
    out << std::setw(8) << row["global_batch_size"].dump() << std::setw(11)
        << metrics::fixed(row["eager_ms"].get<double>(), 3) << std::setw(11)
        << metrics::fixed(row["graph_ms"].get<double>(), 3);
    for (const Json& repeat : row["repeats"]) {
      const Json& ms = repeat["ms_per_step"];
      out << std::setw(11) << (ms.is_null() ? "-" : metrics::fixed(ms.get<double>(), 3));
    }
    out << "\n";
  }
  out << "\nMilliseconds of a step, medians. eager, graph: steps of a training, with their batches. K: that many steps "
         "in one graph, all on one batch.\n";
}

}  // namespace

int run_bench_graphs(const BenchGraphsOptions& options) {
  std::vector<std::optional<int64_t>> batches(options.batches.begin(), options.batches.end());
  if (batches.empty()) batches.emplace_back();
  Json json, works, rows = Json::array();
  for (const std::optional<int64_t>& batch : batches) rows.push_back(measure_batch(options, batch, works));
  log::progress_done();
  json["works"] = works;
  json["batches"] = rows;
  print_graphs(json, std::cout);
  if (!options.json_out.empty()) {
    write_text_atomic(options.json_out, json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  }
  return static_cast<int>(ExitCode::done);
}

}  // namespace hrm::commands
