// task=contrastive, from the command line to an evaluation.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "hrm/base/text.h"
#include "hrm/commands/commands.h"
#include "hrm/state/registry.h"
#include "hrm/tasks/contrastive.h"
#include "support/expect_error.h"
#include "support/paths.h"
#include "train/small_run.h"

namespace hrm::tasks {
namespace {

std::string digits() {
  return test::source_dir() + "/data/digits";
}

std::vector<std::string> small_contrastive(const std::filesystem::path& dir) {
  return {"task=contrastive",           "run.dir=" + dir.string(),
          "data.train=" + digits(),     "contrastive.coord_dim_n=8",
          "contrastive.rotor_k=6",      "contrastive.learned_slots=24",
          "contrastive.state_dim=16",   "contrastive.tbptt_window_steps=8",
          "train.global_batch_size=32", "optim.schedule=constant",
          "train.log_every=1",          "runtime.device=cpu",
          "runtime.threads=1"};
}

std::vector<std::string> joined(std::vector<std::string> settings, const std::vector<std::string>& more) {
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

class ContrastiveRun : public ::testing::Test {
 protected:
  // Trains in turns until each of these steps; returns what metrics.jsonl says of the steps, without times.
  std::string trained(const std::string& name, const std::vector<int64_t>& steps,
                      const std::vector<std::string>& more) const {
    for (const int64_t until : steps) {
      commands::TrainOptions training;
      training.overrides =
          joined(joined(small_contrastive(dir_), more), {"run.name=" + name, cat("train.steps=", until)});
      commands::run_train(training);
    }
    std::ifstream in(dir_ / name / "metrics.jsonl");
    std::string line, out;
    while (std::getline(in, line)) {
      if (line.find("train/loss") != std::string::npos) out += line.substr(0, line.find(",\"perf/")) + "\n";
    }
    return out;
  }

  double evaluated(const std::string& name, const std::string& value) const {
    commands::EvalOptions evaluation;
    evaluation.checkpoint = (dir_ / name).string();
    const std::string out = evaluation.json_out = (dir_ / "eval.json").string();
    ::testing::internal::CaptureStdout();
    commands::run_eval(evaluation);
    ::testing::internal::GetCapturedStdout();
    return nlohmann::json::parse(std::ifstream(out))[value].get<double>();
  }

  std::filesystem::path dir_ = testing::fresh_folder("run");
};

// The recipe as it is, beside backprop through a quarter of the steps: the state settles in these, too.
TEST_F(ContrastiveRun, LearnsDigits) {
  commands::TrainOptions training;
  training.config_files = {test::source_dir() + "/configs/contrastive/digits_cpu.json"};
  training.overrides = {"run.dir=" + dir_.string(), "runtime.device=cpu", "data.train=" + digits(),
                        "data.test=" + digits(), "train.eval_every=0"};
  commands::run_train(training);
  const double ours = evaluated("digits_cpu", "accuracy");
  EXPECT_GE(ours, 0.92);
  training.overrides.insert(training.overrides.end(),
                            {"run.name=backprop", "contrastive.rule=backprop", "contrastive.tbptt_window_steps=16"});
  commands::run_train(training);
  EXPECT_GE(ours, evaluated("backprop", "accuracy") - 0.02);
}

// By the commands; contrastive_step_test.cpp compares every tensor, with a ring and a moving field.
TEST_F(ContrastiveRun, ResumesBitForBit) {
  for (const auto& [name, more] : std::map<std::string, std::vector<std::string>>{
           {"plain", {}},
           {"hidden", {"contrastive.hidden=12", "contrastive.momentum=0.6", "contrastive.lowrank_r=2"}},
           {"spsa", {"contrastive.rule=spsa", "contrastive.spsa_directions=2"}}}) {
    const std::string whole = trained(name + "_whole", {8}, more);
    EXPECT_EQ(trained(name + "_parts", {3, 7, 8}, more), whole) << name;
    EXPECT_EQ(evaluated(name + "_parts", "loss"), evaluated(name + "_whole", "loss")) << name;
  }
}

double last_value(const std::string& metrics, const std::string& name) {
  const std::string key = "\"" + name + "\":";
  return std::stod(metrics.substr(metrics.rfind(key) + key.size()));
}

double loss_at_end(const std::string& metrics) {
  return last_value(metrics, "train/loss");
}

TEST_F(ContrastiveRun, MicroBatchesAddUp) {
  const std::string whole = trained("whole", {4}, {});
  const std::string parts = trained("parts", {4}, {"train.micro_batch_size=8"});
  EXPECT_NEAR(loss_at_end(parts), loss_at_end(whole), 1e-4 * loss_at_end(whole));
  EXPECT_NEAR(last_value(parts, "train/beta"), last_value(whole, "train/beta"), 1e-3 * last_value(whole, "train/beta"));
}

// Every rule lowers the loss.
TEST_F(ContrastiveRun, EveryRuleTrains) {
  for (const std::string rule : {"symmetric", "one_sided", "readout", "spsa", "backprop"}) {
    const std::string metrics = trained(rule, {12}, {"contrastive.rule=" + rule});
    EXPECT_LT(loss_at_end(metrics), loss_at_end(metrics.substr(0, metrics.find('\n')))) << rule;
  }
}

TEST_F(ContrastiveRun, LogsTheCosine) {
  const std::string metrics =
      trained("cosine", {2}, {"contrastive.cosine_every=5", "contrastive.tbptt_window_steps=64"});
  // Measured in step 1, and valid until it is measured again.
  ASSERT_NE(metrics.find("\"train/cosine\":"), std::string::npos) << metrics;
  EXPECT_GT(last_value(metrics.substr(0, metrics.find('\n')), "train/cosine"), 0.999);
  EXPECT_GT(last_value(metrics, "train/cosine"), 0.999);
}

TEST_F(ContrastiveRun, RefusesWhatDoesNotFit) {
  const auto refuse = [&](const std::vector<std::string>& more, std::initializer_list<std::string> parts) {
    test::expect_error(ExitCode::usage, parts, [&] {
      config::validate(config::load_config({}, joined(joined(small_contrastive(dir_), {"train.steps=5"}), more)));
    });
  };
  refuse({"optim.ema=0.999"}, {"optim.ema", "set optim.ema to 0"});
  refuse({"parallel.zero=1"}, {"parallel.zero", "set parallel.zero to 0"});
  refuse({"precision.compute=bf16"}, {"precision.compute", "fp32"});
  refuse({"contrastive.coord_dim_n=1"}, {"contrastive.rotor_k", "set contrastive.rotor_mode to off"});
  refuse({"contrastive.beta_share=0.5"}, {"contrastive.beta_share", "contrastive.beta_per_row to false"});
  refuse({"contrastive.rule=readout", "contrastive.beta_per_row=false"}, {"contrastive.beta_per_row", "no nudge"});
  refuse({"contrastive.spsa_sigma=0.1"}, {"contrastive.spsa_sigma", "has no effect"});
  refuse({"contrastive.symplectic_dt=0.1"}, {"contrastive.symplectic_dt", "has no effect"});
  commands::TrainOptions training;
  training.overrides =
      joined(small_contrastive(dir_), {"train.steps=5", "data.train=" + test::source_dir() + "/data/sudoku"});
  test::expect_error(ExitCode::data, {"data/sudoku"}, [&] { commands::run_train(training); });
}

}  // namespace
}  // namespace hrm::tasks
