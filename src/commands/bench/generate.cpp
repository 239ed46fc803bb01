// hrm_train bench generate.
#include <chrono>
#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>

#include "commands/bench/timer.h"
#include "commands/parts.h"
#include "hrm/base/build_info.h"
#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/base/log.h"
#include "hrm/base/philox.h"
#include "hrm/base/text.h"
#include "hrm/commands/commands.h"
#include "hrm/config/load.h"
#include "hrm/models/language_model.h"
#include "hrm/runtime/memory.h"
#include "hrm/tasks/generation.h"
#include "hrm/tasks/registry.h"
#include "hrm/tasks/text_writer.h"

namespace hrm::commands {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

struct BenchSubject {
  std::shared_ptr<models::LanguageModel> model;
  Runtime runtime;
  bool cuda_graphs = true;
};

constexpr const char* kCommand = "bench generate";
constexpr const char* kWhat = "bench generate times language models and causal models; ";

BenchSubject open_checkpoint_subject(const BenchGenerateOptions& o, train::Ranks& ranks) {
  const tasks::StoredModel stored = open_in_parts(kCommand, ranks, o.checkpoint, o.overrides);
  const auto open_writer = tasks::task_spec(stored.config).open_writer;
  require(open_writer != nullptr, ExitCode::usage, kWhat, "'", o.checkpoint, "' is of task ", stored.config.task);
  const tasks::TextWriter writer = open_writer(stored, {.chat_template = "", .system = "", .reads_text = false});
  return {{writer.owner, writer.model}, writer.owner->runtime, writer.cuda_graphs};
}

BenchSubject make_bench_subject(const BenchGenerateOptions& o, train::Ranks& ranks) {
  const int count = ranks.comm->ranks();
  const tasks::TimedRows rows{.prompt = o.prompt, .new_tokens = o.new_tokens, .vocabulary = o.vocab_size};
  std::string task = config::task_of(o.config_files, o.overrides);
  if (task.empty()) task = "language";
  const tasks::TaskSpec& spec = tasks::task_spec(task);
  require(spec.timed_writer != nullptr, ExitCode::usage, kWhat, "the configuration says task=", task);
  std::vector<std::string> settings = {"task=" + task};
  if (count > 1) settings.push_back(cat("parallel.tensor=", count));
  if (spec.timed_settings != nullptr) {
    for (std::string& setting : spec.timed_settings(rows)) settings.push_back(std::move(setting));
  }
  settings.insert(settings.end(), o.overrides.begin(), o.overrides.end());
  const config::LoadedConfig loaded = config::load_config(o.config_files, settings);
  const config::Config& config = loaded.config;
  check_parts(kCommand, config.parallel.tensor, count);
  if (count > 1) train::check_same_program(*ranks.comm, loaded.to_json());
  const tasks::ModelPlace place = place_parts(ranks, config);
  const Runtime runtime = place.start(config);
  return {spec.timed_writer(config, runtime, rows, place.tensor), runtime, config.runtime.cuda_graphs};
}

std::vector<std::vector<int32_t>> random_prompts(int64_t rows, int64_t length, int64_t vocabulary) {
  std::vector<std::vector<int32_t>> prompts(static_cast<size_t>(rows));
  for (size_t row = 0; row < prompts.size(); ++row) {
    CounterRng rng(/*seed=*/1, Stream::token, row);
    for (int64_t i = 0; i < length; ++i) {
      prompts[row].push_back(static_cast<int32_t>(rng.below(static_cast<uint32_t>(vocabulary))));
    }
  }
  return prompts;
}

// The memory of each rank, in their order.
std::vector<Json> memory_of_ranks(const MemoryReport& memory, parallel::Comm& comm) {
  const Json own{{"memory_peak_bytes", memory.allocated_peak},
                 {"memory_reserved_peak_bytes", memory.reserved_peak},
                 {"host_resident_peak_bytes", memory.host_resident_peak},
                 {"text", memory_text(memory)}};
  std::vector<Json> all;
  for (const std::string& text : comm.all_gather_text(own.dump())) all.push_back(Json::parse(text));
  return all;
}

int bench_generate(const BenchGenerateOptions& o, train::Ranks& ranks) {
  parallel::Comm& comm = *ranks.comm;
  tasks::GenerateOptions options;
  options.max_new_tokens = o.new_tokens;
  options.sampling = {.temperature = o.temperature, .top_k = o.top_k, .top_p = o.top_p};
  options.begin_id = 0;
  tasks::check(options.sampling);
  const BenchSubject subject = o.checkpoint.empty() ? make_bench_subject(o, ranks) : open_checkpoint_subject(o, ranks);
  const int64_t vocabulary = subject.model->head().vocabulary();
  Json json{{"device", subject.runtime.device_name},
            {"precision", subject.runtime.precision.name},
            {"ranks", comm.ranks()},
            {"vocabulary", vocabulary},
            {"prompt", o.prompt},
            {"new_tokens", o.new_tokens},
            {"temperature", o.temperature}};
  for (const auto& [key, value] : build_info()) json["build"][key] = value;
  json["runs"] = Json::array();
  for (const int64_t rows : o.rows) {
    const auto prompts = random_prompts(rows, o.prompt, vocabulary);
    tasks::Generator generator(*subject.model, {.batch_size = rows, .cuda_graphs = subject.cuda_graphs});
    std::vector<double> seconds, firsts;
    // The first two passes also record the graphs.
    for (int64_t pass = -2; pass < o.passes; ++pass) {
      const Clock::time_point start = Clock::now();
      const auto since = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
      double first = -1;
      int64_t tokens = 0;
      const auto answers = generator.run(prompts, options, {.on_token = [&](int64_t, int32_t) {
                                           if (first < 0) first = since();
                                           report_alive(ranks, ++tokens, "step");
                                           return true;
                                         }});
      require(answers.back().finish == tasks::Finish::length &&
                  static_cast<int64_t>(answers.back().ids.size()) == o.new_tokens,
              ExitCode::usage, "the model takes no rows of ", o.prompt, " and ", o.new_tokens,
              " tokens; set lm.positions or hf.positions, or give less");
      if (pass < 0) continue;
      seconds.push_back(since());
      firsts.push_back(first);
    }
    const double all = spread_of(seconds).median, first = spread_of(firsts).median;
    const double per_second = static_cast<double>(rows * o.new_tokens) / all;
    json["runs"].push_back(
        {{"rows", rows},
         {"seconds", seconds},
         {"first_token_s", firsts},
         {"tokens_per_s", per_second},
         {"step_ms", (all - first) / static_cast<double>(std::max<int64_t>(o.new_tokens - 1, 1)) * 1e3}});
    if (!comm.main()) continue;
    std::cout << std::fixed << std::setprecision(1) << std::setw(5) << rows << (rows == 1 ? " row   " : " rows  ")
              << std::setw(10) << per_second << " tokens/s, first after " << std::setprecision(2) << first * 1e3
              << " ms, then " << std::setprecision(3) << json["runs"].back()["step_ms"].get<double>() << " ms each\n"
              << std::flush;
  }
  report_alive(ranks, 0, "report");
  const std::vector<Json> memory = memory_of_ranks(memory_report(subject.runtime.device), comm);
  if (!comm.main()) return static_cast<int>(ExitCode::done);
  for (const char* key : {"memory_peak_bytes", "memory_reserved_peak_bytes", "host_resident_peak_bytes"}) {
    json[key] = memory[0][key];
  }
  if (comm.alone()) {
    std::cout << "memory     " << memory[0]["text"].get<std::string>() << "\n" << std::flush;
  } else {
    json["memory_of_ranks"] = Json::array();
    for (size_t rank = 0; rank < memory.size(); ++rank) {
      std::cout << "memory     rank " << rank << ": " << memory[rank]["text"].get<std::string>() << "\n" << std::flush;
      json["memory_of_ranks"].push_back(memory[rank]);
      json["memory_of_ranks"].back().erase("text");
    }
  }
  if (!o.json_out.empty()) write_text_atomic(o.json_out, json.dump(2) + "\n");
  return static_cast<int>(ExitCode::done);
}

}  // namespace

int run_bench_generate(const BenchGenerateOptions& o) {
  if (!o.checkpoint.empty()) {
    require(o.config_files.empty(), ExitCode::usage, "give --checkpoint or --config, not both");
    require(o.vocab_size == 0, ExitCode::usage, "--vocab-size is of a model with random weights, and '", o.checkpoint,
            "' has its own; leave it out");
  }
  return run_in_parts(kCommand, o.overrides, [&](train::Ranks& ranks) { return bench_generate(o, ranks); });
}

}  // namespace hrm::commands
