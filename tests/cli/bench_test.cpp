// bench, run as users do.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/program.h"
#include "hrm/formats/input_window.h"
#include "support/first_rows.h"
#include "support/overrides.h"
#include "support/paths.h"

namespace hrm {
namespace {

using test::with;
namespace fs = std::filesystem;
using nlohmann::json;
using test::expect_refusal;
using test::read;
using test::Result;
using test::run;
using test::TempDir;

// The smallest model on real data, with a run folder that must not come to be.
std::vector<std::string> tiny(const fs::path& dir) {
  return {"run.dir=" + (dir / "runs").string(),
          "data.train=" + test::first_rows("train_17clue_1k.csv", 100),
          "data.test=" + test::first_rows("test_17clue_2k.csv", 100),
          "model.hidden_size=32",
          "model.num_heads=2",
          "model.H_layers=1",
          "model.L_layers=1",
          "model.H_cycles=1",
          "model.L_cycles=1",
          "model.halt_max_steps=2",
          "train.global_batch_size=4",
          "runtime.device=cpu",
          "runtime.threads=1"};
}

size_t entries(const fs::path& dir) {
  return static_cast<size_t>(std::distance(fs::directory_iterator(dir), fs::directory_iterator()));
}

TEST(BenchStep, TimesAndTableAndNothingLeftBehind) {
  const TempDir dir;
  const fs::path file = dir / "step.json";
  const Result result = run(with({"bench", "step", "--steps", "3", "--warmup", "1", "--settle", "0.2",
                                  "--profile-steps", "2", "--json", file.string()},
                                 tiny(dir.path())));
  ASSERT_EQ(result.code, 0) << result.err;
  for (const char* part : {"step ", " ms (p10 ", "samples/s", "of resident memory", "matrix products", "optimizer"}) {
    EXPECT_NE(result.out.find(part), std::string::npos) << part << " is not in:\n" << result.out;
  }
  const json out = json::parse(read(file));
  EXPECT_EQ(out.at("steps"), 3);
  EXPECT_EQ(out.at("step_ms_each").size(), 3u);
  EXPECT_GT(out.at("warmup").get<int64_t>(), 1);  // and those of the 0.2 s
  EXPECT_GT(out.at("step_ms").at("median").get<double>(), 0);
  EXPECT_LE(out.at("step_ms").at("min"), out.at("step_ms").at("median"));
  EXPECT_GE(out.at("step_ms").at("max"), out.at("step_ms").at("median"));
  EXPECT_NEAR(out.at("samples_per_s").get<double>(), 4e3 / out.at("step_ms").at("median").get<double>(), 1e-6);
  EXPECT_GT(out.at("memory").at("host_resident_peak_bytes"), 0);
  EXPECT_GT(out.at("counts").at("calls"), 100);
  EXPECT_GT(out.at("counts").at("bytes"), out.at("counts").at("peak_bytes"));
  const json& groups = out.at("profile").at("groups");
  double share = 0;
  for (const json& group : groups) share += group.at("share").get<double>();
  EXPECT_NEAR(share, 1, 1e-9);
  EXPECT_FALSE(fs::exists(dir / "runs"));
  EXPECT_EQ(entries(dir.path()), 1U);  // the JSON file alone
}

// They are all of the time of a step.
void check_phases(const json& out, const std::set<std::string>& names) {
  std::set<std::string> found;
  double sum = 0;
  for (const json& phase : out.at("phases")) {
    EXPECT_GE(phase.at("ms_per_step").get<double>(), 0) << phase;
    found.insert(phase.at("name").get<std::string>());
    sum += phase.at("ms_per_step").get<double>();
  }
  EXPECT_EQ(found, names);
  const double mean = out.at("step_ms").at("mean").get<double>();
  EXPECT_NEAR(sum, mean, 0.03 * mean);
}

TEST(BenchStep, PhasesAddUpToTheStep) {
  const TempDir dir;
  const fs::path file = dir / "step.json";
  const auto bench = [&](const std::vector<std::string>& more) {
    const Result result = run(with(with({"bench", "step", "--steps", "20", "--warmup", "2", "--settle", "0",
                                         "--profile-steps", "0", "--json", file.string()},
                                        tiny(dir.path())),
                                   more));
    EXPECT_EQ(result.code, 0) << result.err;
    return std::pair{result.out, json::parse(read(file))};
  };
  const std::set<std::string> names{"data",       "optimizer.zero_grad", "forward",        "backward",
                                    "all_reduce", "grad_clip",           "optimizer.step", "report"};
  const auto [text, whole] = bench({});
  EXPECT_NE(text.find("phase, by the device's clock"), std::string::npos) << text;
  check_phases(whole, names);
  check_phases(bench({"train.micro_batch_size=2"}).second, names);
  const auto [quiet, off] = bench({"profiling.phases=false"});
  EXPECT_EQ(quiet.find("phase, by"), std::string::npos) << quiet;
  EXPECT_FALSE(off.contains("phases"));
}

TEST(BenchStep, PhasesOfAContrastiveStep) {
  const TempDir dir;
  const fs::path file = dir / "step.json";
  const Result result = run({"bench",
                             "step",
                             "--steps",
                             "10",
                             "--warmup",
                             "2",
                             "--settle",
                             "0",
                             "--profile-steps",
                             "0",
                             "--json",
                             file.string(),
                             "task=contrastive",
                             "run.dir=" + dir.path().string(),
                             "data.train=" + test::source_dir() + "/data/digits",
                             "contrastive.learned_slots=24",
                             "contrastive.state_dim=16",
                             "train.global_batch_size=32",
                             "runtime.device=cpu",
                             "runtime.threads=1"});
  ASSERT_EQ(result.code, 0) << result.err;
  check_phases(json::parse(read(file)), {"data", "optimizer.zero_grad", "prepare", "window", "all_reduce", "grad_clip",
                                         "optimizer.step", "project", "report"});
}

TEST(BenchGraphs, ListsWhatIsCapturedAndTimesBatches) {
  const TempDir dir;
  const fs::path file = dir / "graphs.json";
  const Result result = run(with({"bench", "graphs", "--batches", "4,8", "--repeats", "1,2", "--steps", "4", "--warmup",
                                  "1", "--settle", "0", "--json", file.string()},
                                 tiny(dir.path())));
  ASSERT_EQ(result.code, 0) << result.err;
  const json out = json::parse(read(file));
  std::map<std::string, std::string> works;
  for (const json& work : out.at("works")) works[work.at("work")] = work.at("state");
  for (const char* work : {"training step", "evaluation segment"})
    EXPECT_EQ(works.at(work), "eager: CUDA graphs need a GPU") << work;
  EXPECT_TRUE(works.at("batch").starts_with("eager: its copy"));
  ASSERT_EQ(out.at("batches").size(), 2U);
  for (size_t i = 0; i < 2; ++i) {
    const json& row = out.at("batches")[i];
    EXPECT_EQ(row.at("global_batch_size"), i == 0 ? 4 : 8);
    EXPECT_GT(row.at("eager_ms"), 0);
    EXPECT_GT(row.at("graph_ms"), 0);
    ASSERT_EQ(row.at("repeats").size(), 2U);
    EXPECT_EQ(row.at("repeats")[1].at("steps_per_graph"), 2);
    EXPECT_GT(row.at("repeats")[1].at("ms_per_step"), 0);
  }
  EXPECT_NE(result.out.find("K=2"), std::string::npos) << result.out;
  EXPECT_EQ(entries(dir.path()), 1U);
  expect_refusal(ExitCode::usage, with({"bench", "graphs", "--batches", "0"}, tiny(dir.path())), {"--batches"});
  expect_refusal(ExitCode::usage,
                 with({"bench", "graphs", "--batches", "6"}, with(tiny(dir.path()), {"train.micro_batch_size=4"})),
                 {"train.micro_batch_size"}, {}, /*alone=*/false);
}

TEST(BenchStep, WithoutATable) {
  const TempDir dir;
  const Result result = run(with({"bench", "step", "--steps", "1", "--warmup", "1", "--settle", "0", "--profile-steps",
                                  "0", "profiling.phases=false"},
                                 tiny(dir.path())));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out.find("ms/step"), std::string::npos);
}

TEST(BenchEval, Times) {
  const TempDir dir;
  const fs::path file = dir / "eval.json";
  const Result result = run(
      with({"bench", "eval", "--passes", "2", "--profile-passes", "1", "--json", file.string(), "eval.max_samples=6"},
           tiny(dir.path())));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.out.find("for 6 samples, 2 segments"), std::string::npos) << result.out;
  const json out = json::parse(read(file));
  EXPECT_EQ(out.at("samples"), 6);
  EXPECT_GT(out.at("samples_per_s"), 0);
  EXPECT_NE(result.out.find("ms/pass"), std::string::npos) << result.out;
  double share = 0;
  for (const json& group : out.at("profile").at("groups")) share += group.at("share").get<double>();
  EXPECT_NEAR(share, 1, 1e-9);
  EXPECT_GT(out.at("profile").at("kernels").at(0).at("ms_per_pass"), 0);
  EXPECT_FALSE(fs::exists(dir / "runs"));
}

TEST(BenchOps, MeasuresWhatTheFilterFits) {
  const TempDir dir;
  const fs::path file = dir / "ops.json";
  const Result result = run({"bench", "ops", "--device", "cpu", "--filter", "SWIGLU trm ", "--json", file.string()});
  ASSERT_EQ(result.code, 0) << result.err;
  const json out = json::parse(read(file));
  EXPECT_GT(out.at("copy_bytes_per_s"), 0);
  EXPECT_GT(out.at("matmul_flops_per_s"), 0);
  ASSERT_FALSE(out.at("ops").empty());
  for (const json& op : out.at("ops")) {
    EXPECT_EQ(op.at("shape"), "TRM 4");
    EXPECT_GT(op.at("fused_ms"), 0);
    EXPECT_GT(op.at("reference_ms"), 0);
    EXPECT_GT(op.at("bytes_per_s"), 0);
  }
}

// By the reference, on tiny decoders.
TEST(BenchFp8, ProductsPassesAndStepsOfEachWidth) {
  const TempDir dir;
  const fs::path file = dir / "fp8.json", temporary = dir / "tmp";
  fs::create_directory(temporary);
  const Result result = run({"bench",
                             "fp8",
                             "--widths",
                             "32,48",
                             "--steps",
                             "3",
                             "--warmup",
                             "1",
                             "--settle",
                             "0",
                             "--json",
                             file.string(),
                             "lm.layers=1",
                             "lm.num_heads=2",
                             "lm.kv_heads=1",
                             "lm.inner=64",
                             "data.decoder_len=16",
                             "train.global_batch_size=2",
                             "train.micro_batch_size=1",
                             "precision.fp8_scaling=current",
                             "runtime.device=cpu",
                             "runtime.threads=1"},
                            {.shell = "", .environment = "TMPDIR=" + temporary.string(), .input = ""});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.err.find("current scaling"), std::string::npos) << result.err;
  EXPECT_EQ(entries(temporary), 0U) << "the random tokens are still there";
  const json widths = json::parse(read(file)).at("widths");
  ASSERT_EQ(widths.size(), 2U);
  for (size_t i = 0; i < 2; ++i) {
    const json& of = widths[i];
    const int64_t width = i == 0 ? 32 : 48;
    EXPECT_EQ(of.at("width"), width);
    const std::vector<std::pair<int64_t, int64_t>> sizes = {
        {width, 2 * width}, {width, width}, {width, 128}, {64, width}};
    ASSERT_EQ(of.at("block").size(), sizes.size());
    double wide = 0, narrow = 0, passes = 0;
    for (size_t layer = 0; layer < sizes.size(); ++layer) {
      const json& block = of.at("block").at(layer);
      EXPECT_EQ(block.at("in"), sizes[layer].first);
      EXPECT_EQ(block.at("out"), sizes[layer].second);
      ASSERT_EQ(block.at("products").size(), 3U);
      for (const json& product : block.at("products")) {
        const double us = product.at("fp8_us"),
                     flops = 2.0 * 16 * block.at("in").get<double>() * block.at("out").get<double>();
        EXPECT_NEAR(product.at("fp8_tflops").get<double>(), 1e-6 * flops / us, 1e-9);
        wide += product.at("wide_us").get<double>();
        narrow += us;
      }
      ASSERT_EQ(block.at("passes").size(), 3U);
      // Of the input in float32: read, and two copies of a byte written.
      EXPECT_EQ(block.at("passes").at(0).at("bytes"), 6 * 16 * sizes[layer].first);
      for (const json& pass : block.at("passes")) passes += pass.at("us").get<double>();
    }
    EXPECT_NEAR(of.at("products_ratio").get<double>(), wide / narrow, 1e-9);
    EXPECT_NEAR(of.at("passes_us").get<double>(), passes, 1e-6);
    EXPECT_EQ(of.at("step").at("precision"), "fp32");
    EXPECT_EQ(of.at("fp8_step").at("precision"), "fp32 with fp8 blocks");
    EXPECT_EQ(of.at("step").at("parameters"), of.at("fp8_step").at("parameters"));
    const auto median = [&](const char* side) { return of.at(side).at("step_ms").at("median").get<double>(); };
    EXPECT_NEAR(of.at("step_ratio").get<double>(), median("step") / median("fp8_step"), 1e-9);
  }
  for (const char* part : {"width 48: 1 layers, inner width 64, 1 x 16 tokens", "quantise the gradient", "2 x 16"}) {
    EXPECT_NE(result.out.find(part), std::string::npos) << part << " is not in:\n" << result.out;
  }
}

TEST(BenchFp8, AStoppedOneRemovesItsTokens) {
  const TempDir dir;
  const fs::path temporary = dir / "tmp";
  fs::create_directory(temporary);
  // Stops what the shell becomes once the folder of tokens is there, while files still appear in it, as the index of
  // the tokens may.
  const std::string at = test::quoted(temporary.string());
  const std::string shell =
      "TMPDIR=" + at + "; export TMPDIR; (while [ -d " + at + " ]; do [ -e " + at +
      "/*/train.jsonl ] && break; sleep 0.01; done; cd " + at +
      "; set -- $PWD/*; (i=0; while [ $i -lt 100000 ] && : > $1/late$((i % 64)); do i=$((i + 1)); done) 2> /dev/null &"
      " sleep 0.05; kill -TERM $$) & exec env";
  const Result result =
      run({"bench", "fp8", "--widths", "32", "--steps", "1000000", "--settle", "0", "lm.layers=1", "lm.num_heads=2",
           "data.decoder_len=16", "train.global_batch_size=2", "runtime.device=cpu", "runtime.threads=1"},
          {.shell = shell, .environment = "", .input = ""});
  EXPECT_EQ(result.code, -1) << "it ended otherwise than by a signal: " << result.err;
  EXPECT_EQ(entries(temporary), 0U) << "the random tokens are still there";
}

TEST(BenchFp8, Refusals) {
  const std::vector<std::string> words = {"bench", "fp8", "--widths"};
  expect_refusal(ExitCode::environment, {"bench", "fp8"}, {"runtime.device is 'cuda'", "runtime.device=cpu"});
  expect_refusal(ExitCode::usage, with(words, {"24"}), {"24 is not a multiple of 16"});
  expect_refusal(ExitCode::usage, with(words, {"32", "lm.hidden_size=48"}), {"lm.hidden_size", "--widths"});
  expect_refusal(ExitCode::usage, with(words, {"32", "task=puzzle"}), {"plain decoders", "leave out task"});
  expect_refusal(ExitCode::usage, with(words, {"32", "moe.experts=4"}), {"plain decoders", "moe.experts"});
  expect_refusal(ExitCode::usage, with(words, {"32", "data.train=x"}), {"random tokens", "data.train"});
}

TEST(Bench, ExpertsOfBothKinds) {
  const TempDir dir;
  const auto file = dir / "moe.json";
  for (const std::string activation : {"gelu", "swiglu"}) {
    const Result result =
        run({"bench",       "moe",  "--device",  "cpu",        "--tokens", "9", "--dim",        "8",
             "--width",     "5",    "--experts", "3",          "--top-k",  "2", "--activation", activation,
             "--precision", "fp32", "--json",    file.string()});
    ASSERT_EQ(result.code, 0) << result.err;
    const json out = json::parse(read(file));
    EXPECT_EQ(out.at("activation"), activation);
    EXPECT_EQ(out.at("precision"), "fp32");
    EXPECT_EQ(out.at("way"), "a product for each expert");
    EXPECT_GT(out.at("parts_ms").at("up and " + activation + ", backward"), 0);
  }
}

TEST(BenchContrastive, ComparesWithBackprop) {
  const TempDir dir;
  const fs::path file = dir / "gradients.json";
  const std::vector<std::string> small = {"task=contrastive",
                                          "run.dir=" + dir.path().string(),
                                          "data.train=" + test::source_dir() + "/data/digits",
                                          "contrastive.learned_slots=24",
                                          "contrastive.state_dim=16",
                                          "train.global_batch_size=32",
                                          "runtime.device=cpu",
                                          "runtime.threads=1"};
  const auto expect_close = [&](const Result& result, const std::string& dtype, double least) {
    ASSERT_EQ(result.code, 0) << result.err;
    for (const char* part : {"symmetric, 64 free and 64 nudged steps, over beta / limit: cosine", "encoder.weight",
                             "one-sided, beta / limit 0.2, over free and nudged steps: relative error", "64, 8"}) {
      EXPECT_NE(result.out.find(part), std::string::npos) << part << " is not in:\n" << result.out;
    }
    const json out = json::parse(read(file));
    EXPECT_EQ(out.at("dtype"), dtype);
    EXPECT_EQ(out.at("rows"), 40);
    ASSERT_EQ(out.at("over_beta").size(), 14U);
    ASSERT_EQ(out.at("over_steps").size(), 10U);
    const json& tenth = out.at("over_beta")[3];
    EXPECT_EQ(tenth.at("share"), 0.1);
    for (const json& name : out.at("parameters")) {
      EXPECT_GE(tenth.at("cosine").at(name.get<std::string>()), least) << name;
    }
    // The symmetric quotient errs by the square of beta, the one-sided one by beta.
    const auto error = [&](size_t i) -> double {
      return out.at("over_beta")[i].at("relative_error").at("all but the readout");
    };
    EXPECT_NEAR(std::log(error(5) / error(4)) / std::log(2), 2, 0.2);
    EXPECT_NEAR(std::log(error(12) / error(11)) / std::log(2), 1, 0.2);
    const json &settled = out.at("over_steps")[0], &few = out.at("over_steps")[3];
    EXPECT_EQ(few.at("nudge_steps"), 4);
    EXPECT_LT(few.at("cosine").at("all but the readout"), settled.at("cosine").at("all but the readout"));
  };
  const std::vector<std::string> bench = {"bench", "contrastive", "--rows", "40", "--json", file.string()};
  expect_close(run(with(bench, small)), "float32", 0.999);
  EXPECT_EQ(entries(dir.path()), 1U);  // the JSON file alone

  ASSERT_EQ(run(with({"train", "train.steps=3"}, small)).code, 0);
  const std::string trained = (dir / "run").string();
  const Result result = run(with(bench, {"--checkpoint", trained, "--float64"}));
  expect_close(result, "float64", 0.9999);
  EXPECT_NE(result.out.find("step-000000003"), std::string::npos) << result.out;

  const std::vector<std::string> sound = {"task=contrastive", "data.train=" + test::source_dir() + "/data/digits",
                                          "runtime.device=cpu", "runtime.threads=1"};
  const Result layered = run(
      with(with(bench, {"--float64"}),
           with(sound, {"contrastive.network=layered", "contrastive.layer_count=2", "contrastive.layer_width=16"})));
  ASSERT_EQ(layered.code, 0) << layered.err;
  const json out = json::parse(read(file));
  ASSERT_EQ(out.at("parameters").size(), 6U);
  for (const json& name : out.at("parameters")) {
    EXPECT_GE(out.at("over_beta")[3].at("cosine").at(name.get<std::string>()), 0.9999) << name;
  }

  expect_refusal(ExitCode::usage, with({"bench", "contrastive"}, with(sound, {"contrastive.mode=compat"})),
                 {"contrastive.mode is 'compat'"}, {}, /*alone=*/false);
  expect_refusal(ExitCode::usage, with({"bench", "contrastive"}, tiny(dir.path())), {"task=puzzle"}, {},
                 /*alone=*/false);
  expect_refusal(ExitCode::usage, {"bench", "contrastive", "--config", "x.json", "--checkpoint", trained},
                 {"--checkpoint or --config, not both"});
  expect_refusal(ExitCode::usage, with({"bench", "contrastive", "--float64"}, with(small, {"runtime.device=cuda"})),
                 {"--float64", "runtime.device is 'cuda'"}, {}, /*alone=*/false);
}

TEST(BenchTokenizer, MeasuresAText) {
  const TempDir dir;
  const fs::path file = dir / "tokenizer.json",
                 tokenizer = fs::path(test::source_dir()) / "tests/fixtures/tokenizer/tokenizer.json";
  std::ofstream text(dir / "text.txt");
  for (int i = 0; i < 20000; ++i) text << "It was the best of times, it was " << i << "\n";
  text.close();
  const Result result = run({"bench", "tokenizer", "--tokenizer", tokenizer.string(), "--text",
                             (dir / "text.txt").string(), "--threads", "2", "--passes", "2", "--json", file.string()});
  ASSERT_EQ(result.code, 0) << result.err;
  const json out = json::parse(read(file));
  EXPECT_EQ(out.at("bytes"), fs::file_size(dir / "text.txt"));
  EXPECT_EQ(out.at("documents"), (fs::file_size(dir / "text.txt") + 65535) / 65536);
  EXPECT_GT(out.at("tokens"), 20000 * 10);
  EXPECT_EQ(out.at("seconds_each").size(), 2u);
  EXPECT_GT(out.at("cpu_seconds_each").at(0), 0);
  EXPECT_GT(out.at("mb_per_s"), 0);
  EXPECT_NE(result.out.find("2 threads"), std::string::npos) << result.out;
  std::ofstream(dir / "empty.txt").close();
  const std::vector<std::string> of = {"bench", "tokenizer", "--tokenizer", tokenizer.string(), "--text"};
  expect_refusal(ExitCode::data, with(of, {(dir / "empty.txt").string()}), {"is empty"});
  expect_refusal(ExitCode::data, with(of, {(dir / "none.txt").string()}), {"none.txt"});
  expect_refusal(ExitCode::usage, with(of, {"x", "--threads", "0"}), {"--threads"});
}

TEST(Bench, WrongInput) {
  const TempDir dir;
  expect_refusal(
      ExitCode::usage, {"bench"},
      {"give a subcommand: step, graphs, ops, fp8, moe, scan, contrastive, eval, comm, tokenizer, generate"});
  expect_refusal(ExitCode::usage, {"bench", "stp"}, {"unknown subcommand 'stp'", "did you mean 'step'?"});
  expect_refusal(ExitCode::usage, {"bench", "step", "--steps", "0"}, {"--steps"});
  expect_refusal(ExitCode::usage,
                 with({"bench", "step"}, with(tiny(dir.path()), {"optim.warmup_steps=9223372036854775807"})),
                 {"optim.warmup_steps = 9223372036854775807", "is longer"});
  expect_refusal(ExitCode::usage, {"bench", "step", "model.archh=hrm"}, {"model.archh", "model.arch"});
  expect_refusal(ExitCode::usage, with({"bench", "step", "--memory"}, tiny(dir.path())),
                 {"this runs on a CPU", "profiling.memory"}, {}, /*alone=*/false);
  expect_refusal(ExitCode::usage, {"bench", "ops", "--device", "cpu", "--filter", "("},
                 {"--filter '('", "not a regular expression"}, {}, /*alone=*/false);
  expect_refusal(ExitCode::environment, {"bench", "ops", "--device", "cuda"}, {"runtime.device is 'cuda'"}, {},
                 /*alone=*/false);
  expect_refusal(ExitCode::data, with({"bench", "step"}, with(tiny(dir.path()), {"data.train=nowhere.csv"})),
                 {"nowhere.csv"}, {}, /*alone=*/false);
  expect_refusal(ExitCode::usage, with({"bench", "eval"}, with(tiny(dir.path()), {"data.test="})),
                 {"data.test is empty"}, {}, /*alone=*/false);
  expect_refusal(ExitCode::usage, {"bench", "comm"}, {"this process is alone", "torchrun"});
  expect_refusal(ExitCode::usage, {"bench", "comm", "--max-mb", "0"}, {"--max-mb"});
  expect_refusal(ExitCode::usage, {"bench", "comm", "--ops", "gather"}, {"--ops", "all-gather"});
  expect_refusal(ExitCode::usage, {"bench", "comm", "--leave", "8"}, {"--leave", "add --beside"});
  const Result none = run({"bench", "ops", "--device", "cpu", "--filter", "no such op"});
  EXPECT_EQ(none.code, static_cast<int>(ExitCode::usage));
  test::expect_one_sentence(none.err, {"fits no op"}, /*alone=*/false);
}

// Found out before anything is measured, and nothing but files is replaced.
TEST(Bench, ResultFilesThatCannotBeWritten) {
  const TempDir dir;
  const std::vector<std::string> quick = {"--steps", "1", "--warmup", "1", "--settle", "0", "--profile-steps", "0"};
  const std::vector<std::string> step = with(with({"bench", "step"}, quick), tiny(dir.path()));
  const std::vector<std::vector<std::string>> commands = {
      step, with({"bench", "eval"}, tiny(dir.path())), {"bench", "ops"}, {"plan"}, {"eval", "--checkpoint", "x"}};
  for (const std::vector<std::string>& command : commands) {
    expect_refusal(ExitCode::environment, with(command, {"--json", dir.path().string()}), {"--json", "is a folder"});
    expect_refusal(ExitCode::environment, with(command, {"--json", (dir / "no/x.json").string()}),
                   {"there is no folder", (dir / "no").string()});
    expect_refusal(ExitCode::usage, with(command, {"--json", ""}), {"--json", "empty"});
  }
  // A link stays one, as /dev/stdout is; what it points to is replaced.
  fs::create_symlink("target.json", dir / "link.json");
  std::ofstream(dir / "target.json") << "old";
  ASSERT_EQ(run(with(step, {"--json", (dir / "link.json").string()})).code, 0);
  EXPECT_TRUE(fs::is_symlink(dir / "link.json"));
  EXPECT_EQ(json::parse(read(dir / "target.json")).at("steps"), 1);
}

// The lines of a training, with the time to the end of a run that is never made, have no place there.
TEST(BenchStep, SaysWhatItMeasuresAndNothingOfTheRun) {
  const TempDir dir;
  const Result result =
      run(with({"bench", "step", "--steps", "1", "--warmup", "12", "--settle", "0", "--profile-steps", "0"},
               with(tiny(dir.path()), {"train.steps=50000", "optim.warmup_steps=0"})));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.err.find("12 steps of warm-up, 0.0 s to settle, 1 timed step, 0 recorded"), std::string::npos)
      << result.err;
  EXPECT_EQ(result.err.find("eta"), std::string::npos) << result.err;
  EXPECT_NE(result.out.find("1 step of 4 samples"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("GFLOP/s"), std::string::npos) << result.out;
}

TEST(Profiling, TraceOfAWindowOfSteps) {
  const TempDir dir;
  const Result result =
      run(with({"train"}, with(tiny(dir.path()),
                               {"train.steps=6", "optim.warmup_steps=0", "eval.max_samples=4", "profiling.trace=true",
                                "profiling.trace_after=2", "profiling.trace_steps=2", "profiling.trace_stacks=true"})));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.err.find("traced 2 steps"), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("of resident memory"), std::string::npos) << result.err;
  const json trace = json::parse(InputWindow(dir / "runs/run/traces/trace_rank_0.json.gz").rest());
  EXPECT_EQ(trace.at("distributedInfo").at("rank"), 0);
  std::map<std::string, int> ranges;
  for (const json& event : trace.at("traceEvents")) {
    if (event.value("cat", "") == "user_annotation") ++ranges[event.at("name").get<std::string>()];
  }
  for (const char* name :
       {"train.step", "data.next_batch", "optimizer.zero_grad", "forward", "backward", "grad_clip", "optimizer.step"}) {
    EXPECT_EQ(ranges[name], 2) << name;
  }
  EXPECT_EQ(ranges["ProfilerStep#3"], 1) << "the step's number in the run";
  EXPECT_EQ(ranges["ProfilerStep#4"], 1);
  EXPECT_EQ(ranges["ProfilerStep#5"], 0);
  EXPECT_NE(read(dir / "runs/run/traces/trace_rank_0_stacks.txt").find("hrm::train::Trainer::run"), std::string::npos);

  // The metrics have the phases: those of the steps, and of the evaluation.
  std::ifstream lines(dir / "runs/run/metrics.jsonl");
  bool trained = false, evaluated = false;
  for (std::string line; std::getline(lines, line);) {
    const json values = json::parse(line);
    if (values.contains("perf/step_ms")) {
      trained = true;
      double sum = 0;
      for (const auto& [key, value] : values.items()) {
        if (key.starts_with("perf/phase/")) sum += value.get<double>();
      }
      EXPECT_GT(values.at("perf/phase/forward_ms"), 0);
      EXPECT_FALSE(values.contains("perf/phase/eval.batch_ms"));
      EXPECT_NEAR(sum, values.at("perf/step_ms").get<double>(), 0.1 * sum) << "recording a trace takes its time, too";
    } else if (values.contains("eval/accuracy")) {
      evaluated = true;
      EXPECT_GT(values.at("perf/phase/eval.batch_ms"), 0);
    }
  }
  EXPECT_TRUE(trained && evaluated);
}

// The window of Nsight ends the run, which can be continued.
TEST(Profiling, NsightWindowEndsTheRun) {
  const TempDir dir;
  const std::vector<std::string> command =
      with({"train"}, with(tiny(dir.path()), {"train.steps=6", "optim.warmup_steps=0", "eval.max_samples=4"}));
  const Result result =
      run(with(command, {"profiling.nsight_window=true", "profiling.trace_after=1", "profiling.trace_steps=2"}));
  EXPECT_EQ(result.code, static_cast<int>(ExitCode::stopped)) << result.err;
  EXPECT_NE(result.err.find("stopped at step 3 of 6 (the steps for Nsight are done)"), std::string::npos) << result.err;
  EXPECT_FALSE(fs::exists(dir / "runs/run/traces/trace_rank_0.json.gz"));
  EXPECT_EQ(run(command).code, 0);
  expect_refusal(ExitCode::usage, with(command, {"profiling.nsight_window=true", "profiling.trace_steps=0"}),
                 {"profiling.nsight_window", "profiling.trace_steps"});
}

}  // namespace
}  // namespace hrm
