// hrm_train bench fp8.
#include <ATen/ATen.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <iomanip>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "commands/bench/step.h"
#include "commands/bench/timer.h"
#include "hrm/base/build_info.h"
#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/base/philox.h"
#include "hrm/base/text.h"
#include "hrm/commands/commands.h"
#include "hrm/config/load.h"
#include "hrm/metrics/metric_text.h"
#include "hrm/models/make_language_model.h"
#include "hrm/ops/fp8.h"
#include "hrm/ops/fp8_linear.h"
#include "hrm/ops/linear.h"
#include "hrm/ops/start.h"
#include "hrm/runtime/memory.h"

namespace hrm::commands {
namespace {

using Json = nlohmann::ordered_json;
using Words = std::vector<std::string>;
using metrics::fixed;

constexpr int64_t kVocabulary = 32000;
constexpr int64_t kBatches = 4;  // of different tokens

// Removes a folder while other threads may still write files to it. One that appears during remove_all would keep the
// folder, so the folder takes another name first, where no path of a writer leads.
void remove_under_writers(const std::filesystem::path& folder) {
  const std::filesystem::path away = folder.string() + ".removed";
  std::error_code error;
  std::filesystem::rename(folder, away, error);
  std::filesystem::remove_all(error ? folder : away, error);
}

// Removes a folder when SIGTERM, SIGINT or SIGHUP ends the program, which has no other use for them. Threads that begin
// while it lives leave these signals to one thread, which may do more than a signal handler.
class RemovedOnSignals {
 public:
  explicit RemovedOnSignals(const std::filesystem::path& folder) {
    sigset_t signals;
    sigemptyset(&signals);
    for (const int number : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&signals, number);
    pthread_sigmask(SIG_BLOCK, &signals, &before_);
    thread_ = std::jthread([folder, signals](const std::stop_token& stop) {
      constexpr timespec kLook{.tv_sec = 0, .tv_nsec = 50'000'000};
      while (!stop.stop_requested()) {
        const int number = sigtimedwait(&signals, nullptr, &kLook);
        if (number < 0) continue;
        remove_under_writers(folder);
        pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
        raise(number);
      }
    });
  }
  ~RemovedOnSignals() {
    thread_.request_stop();
    thread_.join();
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  RemovedOnSignals(const RemovedOnSignals&) = delete;
  RemovedOnSignals& operator=(const RemovedOnSignals&) = delete;

 private:
  sigset_t before_{};
  std::jthread thread_;
};

// A folder of random tokens, removed by the destructor, and by signals that end the program. Made before computing
// begins threads, which would not leave signals to it.
class RandomTokens {
 public:
  RandomTokens() {
    std::string name = (std::filesystem::temp_directory_path() / "hrm_bench_fp8_XXXXXX").string();
    require(mkdtemp(name.data()) != nullptr, ExitCode::environment, "cannot make the folder '", name,
            "'; let TMPDIR name one that can be written");
    folder_ = name;
    on_signals_ = std::make_unique<RemovedOnSignals>(folder_);
  }
  // In place of those before.
  void write(int64_t rows, int64_t length) const {
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) std::filesystem::remove_all(entry);
    write_text_atomic(folder_ / "meta.json",
                      Json{{"vocab_size", kVocabulary}, {"pad_id", 0}, {"bos_id", -1}, {"eos_id", -1}}.dump());
    std::ostringstream lines;
    for (int64_t row = 0; row < rows; ++row) {
      CounterRng rng(/*seed=*/1, Stream::token, static_cast<uint64_t>(row));
      std::vector<uint32_t> ids(static_cast<size_t>(length + 1));
      for (uint32_t& id : ids) id = rng.below(static_cast<uint32_t>(kVocabulary));
      lines << Json{{"encoder_ids", {0}},
                    {"decoder_input_ids", std::vector(ids.begin(), ids.end() - 1)},
                    {"labels", std::vector(ids.begin() + 1, ids.end())}}
                   .dump()
            << "\n";
    }
    write_text_atomic(folder_ / "train.jsonl", lines.str());
  }
  ~RandomTokens() {
    on_signals_ = nullptr;
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  RandomTokens(const RandomTokens&) = delete;
  RandomTokens& operator=(const RandomTokens&) = delete;

  std::string folder() const { return folder_.string(); }

 private:
  std::filesystem::path folder_;
  std::unique_ptr<RemovedOnSignals> on_signals_;
};

// The decoder of a width, unless overrides say otherwise. About as many tokens for each, and layers so that all fit.
Words decoder_of(int64_t width) {
  const auto set = [](const char* key, int64_t value) { return cat(key, "=", value); };
  const int64_t heads = width >= 4096 ? width / 128 : width % 64 == 0 ? width / 64 : width / 16;
  const bool large = width >= 2048;
  return {"task=language", "lm.arch=decoder", set("lm.hidden_size", width), set("lm.num_heads", heads),
          set("lm.layers", width >= 4096 ? 4
                           : large       ? 8
                                         : 12),
          // As of Qwen3-0.6B; below, two thirds of four times the width.
          set("lm.inner", width >= 1024 ? 3 * width : 0), set("train.global_batch_size", large ? 8 : 16),
          set("data.decoder_len", large ? 2048 : 1024), "data.encoder_len=0", "data.test=none", "train.eval_every=0",
          "train.micro_batch_size=0", "optim.name=adamw", "optim.grad_clip=1", "runtime.device=cuda"};
}

bool only_of_fp8(const std::string& override) {
  return override.starts_with("precision.fp8_");
}

Words settings_of(const BenchFp8Options& o, int64_t width, const std::string& data, bool fp8) {
  Words words = decoder_of(width);
  words.push_back("data.train=" + data);
  for (const std::string& override : o.overrides) {
    if (fp8 || !only_of_fp8(override)) words.push_back(override);
  }
  words.push_back(cat("precision.blocks=", fp8 ? "fp8" : "same"));
  return words;
}

config::Config checked_config(const BenchFp8Options& o, int64_t width) {
  require(width % 16 == 0, ExitCode::usage, "--widths: ", width, " is not a multiple of 16, as 8-bit products need it");
  constexpr const char* kDecoders = "bench fp8 times plain decoders; leave out task, lm.arch and moe.experts";
  const std::string task = config::task_of({}, o.overrides);
  require(task.empty() || task == "language", ExitCode::usage, kDecoders);
  const config::Config config = config::load_config({}, settings_of(o, width, "", true)).config;
  require(!models::reads_prompts(config.lm) && config.moe.experts == 0, ExitCode::usage, kDecoders);
  require(config.lm.hidden_size == width, ExitCode::usage, "lm.hidden_size is one of --widths; leave it out");
  require(config.data.train.empty(), ExitCode::usage, "bench fp8 trains on random tokens; leave out data.train");
  return config;
}

// A linear layer with the operands of its three products in the compute dtype and in 8 bits.
struct Operands {
  at::Tensor x, grad, weight, buffer;
  at::Tensor x8, x_t, grad8, grad_t, weight8, weight_t;
  at::Tensor slot, grad_slot;

  Operands(int64_t rows, int64_t in, int64_t out, bool e5m2, at::Device device, at::ScalarType dtype) {
    const auto random = [&](int64_t n, int64_t m, double scale) {
      return (at::randn({n, m}, at::device(device)) * scale).to(dtype);
    };
    x = random(rows, in, 1);
    grad = random(rows, out, 1);
    weight = random(out, in, 1 / std::sqrt(static_cast<double>(in)));
    buffer = at::zeros({out, in}, at::device(device).dtype(at::kFloat));
    slot = ops::make_fp8_wide_slots(1, false, device).select(0, 0);
    grad_slot = ops::make_fp8_wide_slots(1, e5m2, device).select(0, 0);
    std::tie(x8, x_t) = ops::quantize_fp8_pair(x, slot, false);
    std::tie(weight8, weight_t) = ops::quantize_fp8_pair(weight, slot, false);
    std::tie(grad8, grad_t) = ops::quantize_fp8_pair(grad, grad_slot, e5m2);
  }
};

std::string column(const std::string& text, size_t width) {
  return std::string(width > text.size() ? width - text.size() : 0, ' ') + text;
}

// "bf16" of "bf16 with fp8 blocks".
std::string name_of_wide(const std::string& precision) {
  return precision.substr(0, precision.find(' '));
}

void print_header(const std::string& wide) {
  std::cout << "  layer      work                        in    out" << column(wide + " us", 15) << "  TFLOP/s"
            << column("fp8 us", 13) << "  TFLOP/s  ratio\n";
}

// Products and quantising passes of one layer, measured and printed.
class LayerBench {
 public:
  LayerBench(std::string name, int64_t rows, int64_t in, int64_t out, double budget_ms)
      : name_(std::move(name)), rows_(rows), in_(in), out_(out), budget_ms_(budget_ms) {}

  Json run(const config::Config& config, const Runtime& runtime) {
    const at::NoGradGuard no_grad;
    const bool e5m2 = config.precision.fp8_gradients == config::Fp8Gradients::e5m2;
    device_ = runtime.device;
    const Operands t(rows_, in_, out_, e5m2, runtime.device, runtime.compute_dtype);
    const at::ScalarType dtype = runtime.compute_dtype;
    json_ = {{"layer", name_}, {"in", in_}, {"out", out_}, {"products", Json::array()}, {"passes", Json::array()}};
    product(
        "forward", [&] { ops::linear(t.x, t.weight, t.weight); },
        [&] { ops::fp8_product(t.x8, t.weight8, t.slot, t.slot, dtype); });
    product(
        "gradient of the input", [&] { ops::linear_grad_x(t.grad, t.weight); },
        [&] { ops::fp8_product(t.grad8, t.weight_t, t.grad_slot, t.slot, dtype); });
    product(
        "gradient of the weight", [&] { ops::linear_accumulate_(t.buffer, t.grad, t.x); },
        [&] { ops::fp8_accumulate_(t.buffer, t.grad_t, t.x_t, t.grad_slot, t.slot); });
    const double size = static_cast<double>(t.x.element_size());
    pass("quantise the input", (size + 2) * static_cast<double>(t.x.numel()),
         [&] { ops::quantize_fp8_pair_(t.x, t.x8, t.x_t, t.slot); });
    pass("quantise the gradient", (size + 2) * static_cast<double>(t.grad.numel()),
         [&] { ops::quantize_fp8_pair_(t.grad, t.grad8, t.grad_t, t.grad_slot); });
    pass("quantise the weight", (2 * size + 2) * static_cast<double>(t.weight.numel()), [&] {
      ops::fp8_raise_amax_(t.weight, t.slot);
      ops::quantize_fp8_pair_(t.weight, t.weight8, t.weight_t, t.slot);
    });
    return json_;
  }

 private:
  double time_us(const std::function<void()>& call) const { return 1e3 * time_of_call(device_, budget_ms_, call); }

  void product(const char* what, const std::function<void()>& wide, const std::function<void()>& narrow) {
    const double flops = 2.0 * static_cast<double>(rows_) * static_cast<double>(in_) * static_cast<double>(out_);
    const double us = time_us(wide), us8 = time_us(narrow);
    json_["products"].push_back({{"product", what},
                                 {"wide_us", us},
                                 {"wide_tflops", 1e-6 * flops / us},
                                 {"fp8_us", us8},
                                 {"fp8_tflops", 1e-6 * flops / us8},
                                 {"ratio", us / us8}});
    row(what, column(fixed(us, 1), 15) + column(fixed(1e-6 * flops / us, 1), 9) + column(fixed(us8, 1), 13) +
                  column(fixed(1e-6 * flops / us8, 1), 9) + column(fixed(us / us8, 2), 7));
  }

  void pass(const char* what, double bytes, const std::function<void()>& call) {
    const double us = time_us(call);
    json_["passes"].push_back({{"pass", what}, {"us", us}, {"bytes", bytes}, {"gbytes_per_s", 1e-3 * bytes / us}});
    row(what, column(fixed(us, 1), 37) + column(cat(fixed(1e-3 * bytes / us, 0), " GB/s"), 12));
  }

  void row(const char* what, const std::string& numbers) {
    std::cout << "  " << std::left << std::setw(11) << name_ << std::setw(24) << what << std::right << std::setw(6)
              << in_ << std::setw(7) << out_ << numbers << "\n"
              << std::flush;
  }

  std::string name_;
  int64_t rows_, in_, out_;
  double budget_ms_;
  at::Device device_ = at::kCPU;
  Json json_;
};

// A layer's name, inputs and outputs: the four products of a block.
std::vector<std::tuple<const char*, int64_t, int64_t>> layers_of(const config::Config& config) {
  const config::LmConfig& lm = config.lm;
  const int64_t head = lm.head_dim > 0 ? lm.head_dim : lm.hidden_size / lm.num_heads;
  const int64_t queries = lm.num_heads * head, values = (lm.kv_heads > 0 ? lm.kv_heads : lm.num_heads) * head;
  const int64_t inner = models::swiglu_inner(lm);
  return {{"qkv", lm.hidden_size, queries + 2 * values},
          {"output", queries, lm.hidden_size},
          {"gate, up", lm.hidden_size, 2 * inner},
          {"down", inner, lm.hidden_size}};
}

double sum_of(const Json& layers, const char* list, const char* key) {
  double sum = 0;
  for (const Json& layer : layers) {
    for (const Json& entry : layer[list]) sum += entry[key].get<double>();
  }
  return sum;
}

Json step_in(const BenchFp8Options& o, int64_t width, const std::string& data, bool fp8, at::Device device) {
  reset_memory_peaks(device);
  BenchStepOptions options;
  options.overrides = settings_of(o, width, data, fp8);
  options.steps = o.steps;
  options.warmup = o.warmup;
  options.settle = o.settle;
  options.profile_steps = 0;
  Json out;
  measure_step(options, [&](const Json& json) {
    out = {{"step_ms", json["step_ms"]},
           {"precision", json["precision"]},
           {"parameters", json["parameters"]},
           {"tflops", json["tflops"]},
           {"memory", json["memory"]}};
  });
  return out;
}

Json bench_width(const BenchFp8Options& o, int64_t width, const RandomTokens& tokens) {
  const config::Config config = checked_config(o, width);
  const Runtime runtime = ops::start_runtime_and_ops(config);
  const auto& train = config.train;
  const int64_t micro = train.micro_batch_size > 0 ? train.micro_batch_size : train.global_batch_size;
  const int64_t rows = micro * config.data.decoder_len;
  Json json{{"width", width},
            {"device", runtime.device_name},
            {"layers", config.lm.layers},
            {"inner", models::swiglu_inner(config.lm)},
            {"rows", train.global_batch_size},
            {"micro_batch_size", micro},
            {"length", config.data.decoder_len},
            {"vocabulary", kVocabulary}};
  std::cout << "width " << width << ": " << config.lm.layers << " layers, inner width " << json["inner"] << ", "
            << micro << " x " << config.data.decoder_len << " tokens, on " << runtime.device_name << "\n";
  print_header(name_of_wide(runtime.precision.name));
  const double budget_ms = runtime.device.is_cpu() ? 5 : 100;
  json["block"] = Json::array();
  for (const auto& [name, in, out] : layers_of(config)) {
    json["block"].push_back(LayerBench(name, rows, in, out, budget_ms).run(config, runtime));
  }
  const double wide = sum_of(json["block"], "products", "wide_us"),
               narrow = sum_of(json["block"], "products", "fp8_us");
  const double passes = sum_of(json["block"], "passes", "us");
  json["products_ratio"] = wide / narrow;
  json["passes_us"] = passes;
  std::cout << "  a block's products take " << fixed(wide, 1) << " and " << fixed(narrow, 1) << " us, ratio "
            << fixed(wide / narrow, 2) << "; quantising passes take " << fixed(passes, 1) << " us\n";

  tokens.write(kBatches * train.global_batch_size, config.data.decoder_len);
  json["step"] = step_in(o, width, tokens.folder(), false, runtime.device);
  json["fp8_step"] = step_in(o, width, tokens.folder(), true, runtime.device);
  const double ms = json["step"]["step_ms"]["median"], ms8 = json["fp8_step"]["step_ms"]["median"];
  json["step_ratio"] = ms / ms8;
  return json;
}

// Bytes in tensors at the peak; on the CPU unknown, as the peak of the process has no beginning.
double peak_of(const Json& step) {
  return step["memory"]["allocated_peak_bytes"].get<double>();
}

void print_steps(const Json& widths) {
  const std::string wide = name_of_wide(widths.front()["fp8_step"]["precision"]);
  std::cout << "\ntraining steps\n   width  layers       tokens" << column(wide + " ms", 13) << column("fp8 ms", 13)
            << "  ratio  products  peak memory\n";
  for (const Json& json : widths) {
    const double peak = peak_of(json["step"]), peak8 = peak_of(json["fp8_step"]);
    const auto gib = [](double bytes) { return fixed(bytes / (1 << 30), 2); };
    std::cout << column(json["width"].dump(), 8) << column(json["layers"].dump(), 8)
              << column(cat(json["rows"].dump(), " x ", json["length"].dump()), 13)
              << column(fixed(json["step"]["step_ms"]["median"], 2), 13)
              << column(fixed(json["fp8_step"]["step_ms"]["median"], 2), 13) << column(fixed(json["step_ratio"], 2), 7)
              << column(fixed(json["products_ratio"], 2), 10) << "  "
              << (peak > 0 ? cat(gib(peak), " and ", gib(peak8), " GiB") : std::string("-")) << "\n";
  }
}

}  // namespace

int run_bench_fp8(const BenchFp8Options& o) {
  for (const int64_t width : o.widths) checked_config(o, width);
  const RandomTokens tokens;
  Json json;
  for (const auto& [key, value] : build_info()) json["build"][key] = value;
  json["overrides"] = o.overrides;
  json["steps"] = o.steps;
  json["widths"] = Json::array();
  for (const int64_t width : o.widths) json["widths"].push_back(bench_width(o, width, tokens));
  print_steps(json["widths"]);
  if (!o.json_out.empty()) {
    write_text_atomic(o.json_out, json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  }
  return static_cast<int>(ExitCode::done);
}

}  // namespace hrm::commands
