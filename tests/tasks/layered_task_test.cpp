// contrastive.network=layered, from the command line to an evaluation.
#include "hrm/tasks/layered_task.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "hrm/base/text.h"
#include "hrm/commands/commands.h"
#include "support/expect_error.h"
#include "support/overrides.h"
#include "support/paths.h"
#include "support/ranks.h"
#include "train/small_run.h"

namespace hrm::tasks {
namespace {

using SmallLayered = testing::SmallTraining<LayeredTask>;
using test::Overrides;

Overrides layered_settings(const std::filesystem::path& dir, const Overrides& more) {
  const std::string data = test::source_dir() + "/data/digits";
  return test::with({"task=contrastive", "contrastive.network=layered", "run.dir=" + dir.string(), "run.name=small",
                     "data.train=" + data, "data.test=" + data, "contrastive.layer_count=2",
                     "contrastive.layer_width=32", "train.global_batch_size=32", "optim.schedule=constant",
                     "optim.lr=1e-2", "train.log_every=1", "runtime.device=cpu", "runtime.threads=1"},
                    more);
}

config::LoadedConfig layered_config(const std::filesystem::path& dir, const Overrides& more) {
  config::LoadedConfig loaded = config::load_config({}, layered_settings(dir, more));
  config::validate(loaded);
  return loaded;
}

class LayeredRun : public ::testing::Test {
 protected:
  // The lines of metrics.jsonl of a run that is started anew for each of these last steps.
  std::vector<nlohmann::json> trained(const std::string& name, const std::vector<int64_t>& steps,
                                      const Overrides& more) const {
    for (const int64_t until : steps) {
      commands::TrainOptions training;
      training.overrides = test::with(layered_settings(dir_, more), {"run.name=" + name, cat("train.steps=", until)});
      commands::run_train(training);
    }
    std::ifstream in(dir_ / name / "metrics.jsonl");
    std::vector<nlohmann::json> lines;
    for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::json::parse(line));
    return lines;
  }

  static std::vector<double> values(const std::vector<nlohmann::json>& lines, const std::string& key) {
    std::vector<double> found;
    for (const auto& line : lines) {
      if (line.contains(key)) found.push_back(line[key].get<double>());
    }
    return found;
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

// Three epochs; chance is 10 %. The command `eval` finds what the run itself found.
TEST_F(LayeredRun, LearnsDigitsAndIsEvaluated) {
  const auto lines = trained("digits", {126}, {"contrastive.tbptt_window_steps=24", "train.log_every=42"});
  const std::vector<double> losses = values(lines, "train/loss"), accuracies = values(lines, "eval/accuracy");
  ASSERT_EQ(losses.size(), 3);
  EXPECT_LT(losses.back(), 0.3 * losses.front());
  ASSERT_FALSE(accuracies.empty());
  EXPECT_GT(accuracies.back(), 0.8);
  EXPECT_EQ(evaluated("digits", "accuracy"), accuracies.back());
  EXPECT_EQ(evaluated("digits", "loss"), values(lines, "eval/loss").back());
}

TEST_F(LayeredRun, GradientsAreThoseOfBackpropInEachLayer) {
  for (const int layers : {1, 2}) {
    for (const int64_t steps : {1, 50}) {
      const std::string name = cat("cosine", layers, "_", steps);
      const auto lines = trained(name, {steps},
                                 {cat("contrastive.layer_count=", layers), "contrastive.beta_nudge=0.1",
                                  cat("contrastive.cosine_every=", steps), "contrastive.tbptt_window_steps=48"});
      std::vector<std::string> keys{"train/cosine"};
      for (int l = 0; l < layers; ++l) keys.push_back(cat("train/cosine_layer", l));
      for (const std::string& key : keys) {
        const std::vector<double> cosines = values(lines, key);
        ASSERT_FALSE(cosines.empty()) << key;
        EXPECT_GE(cosines.back(), 0.99) << name << " " << key;
        EXPECT_LE(cosines.back(), 1 + 1e-9) << name << " " << key;
      }
      EXPECT_TRUE(values(lines, cat("train/cosine_layer", layers)).empty());
      const std::vector<double> contractions = values(lines, "train/contraction");
      EXPECT_LE(*std::max_element(contractions.begin(), contractions.end()), 0.95 + 1e-5);
      EXPECT_EQ(contractions.back() > 0, layers > 1) << "one layer has no coupling";
    }
  }
}

// One relaxation step is not enough: the cosine can fail.
TEST_F(LayeredRun, AnUnfinishedRelaxationShowsInTheCosine) {
  const auto lines = trained(
      "short", {3}, {"contrastive.cosine_every=1", "contrastive.tbptt_window_steps=48", "contrastive.nudge_steps=1"});
  EXPECT_LT(values(lines, "train/cosine_layer0").back(), 0.99);
}

TEST_F(LayeredRun, ResumesBitForBit) {
  for (const std::string rule : {"symmetric", "one_sided", "readout", "spsa", "backprop", "feedforward"}) {
    Overrides more{"contrastive.rule=" + rule};
    if (rule != "feedforward") more.emplace_back("contrastive.tbptt_window_steps=12");
    if (rule == "symmetric") more.emplace_back("contrastive.cosine_every=2");
    const auto whole = trained(rule + "_whole", {6}, more), parts = trained(rule + "_parts", {2, 5, 6}, more);
    for (const std::string key : {"train/loss", "train/accuracy", "train/contraction", "train/cosine"}) {
      EXPECT_EQ(values(parts, key), values(whole, key)) << rule << " " << key;
    }
    EXPECT_EQ(evaluated(rule + "_parts", "loss"), evaluated(rule + "_whole", "loss")) << rule;
  }
}

TEST_F(LayeredRun, EveryRuleTrains) {
  for (const std::string rule : {"symmetric", "one_sided", "readout", "spsa", "backprop", "feedforward"}) {
    Overrides more{"contrastive.rule=" + rule};
    if (rule != "feedforward") more.emplace_back("contrastive.tbptt_window_steps=12");
    const std::vector<double> losses = values(trained(rule, {12}, more), "train/loss");
    ASSERT_EQ(losses.size(), 12) << rule;
    EXPECT_LT(losses.back(), losses.front()) << rule;
  }
}

TEST_F(LayeredRun, MicroBatchesAddUp) {
  const auto whole = trained("whole", {4}, {}), parts = trained("parts", {4}, {"train.micro_batch_size=8"});
  for (const std::string key : {"train/loss", "train/accuracy", "train/contraction", "train/beta"}) {
    const double expected = values(whole, key).back();
    EXPECT_NEAR(values(parts, key).back(), expected, 1e-4 * expected) << key;
  }
}

TEST_F(LayeredRun, TwoRanksTrainAsOne) {
  const Overrides settings{"train.steps=5", "contrastive.tbptt_window_steps=16", "optim.eps=1e-3"};
  std::map<std::string, at::Tensor> alone, shared;
  {
    SmallLayered run(layered_config(dir_ / "alone", settings), dir_ / "alone", nullptr);
    run.trainer.start_fresh();
    EXPECT_EQ(run.trainer.run(), train::Outcome::finished);
    alone = run.tensors();
  }
  std::vector<std::shared_ptr<parallel::Comm>> comms;
  for (auto& comm : parallel::make_thread_comms(2)) comms.push_back(std::move(comm));
  test::on_threads(2, [&](int rank) {
    SmallLayered run(layered_config(dir_ / "two", settings), dir_ / "two", comms[static_cast<size_t>(rank)]);
    run.trainer.start_fresh();
    EXPECT_EQ(run.trainer.run(), train::Outcome::finished);
    if (rank == 0) shared = run.tensors();
  });
  ASSERT_EQ(alone.size(), shared.size());
  for (const auto& [name, tensor] : alone) {
    EXPECT_TRUE(at::allclose(shared.at(name).to(at::kDouble), tensor.to(at::kDouble), 2e-4, 2e-5)) << name;
  }
}

// The projection obeys the flag of a step that is skipped.
TEST_F(LayeredRun, ASkippedStepChangesNothing) {
  SmallLayered run(layered_config(dir_, {"train.steps=1"}), dir_, nullptr);
  const at::Tensor weight = run.task.model().named_parameters()["layers.1.weight"];
  {
    const at::NoGradGuard no_grad;
    weight.mul_(50);
  }
  ASSERT_GT(run.task.model().contraction().item<float>(), 1);
  const auto before = run.tensors();
  run.task.update_extra(at::ones({}));
  for (const auto& [name, tensor] : run.tensors()) EXPECT_TRUE(at::equal(tensor, before.at(name))) << name;
  run.task.update_extra(at::zeros({}));
  EXPECT_LE(run.task.model().contraction().item<float>(), 0.95f + 1e-5f);
}

// No part of a step records a graph.
TEST_F(LayeredRun, UsesNoAutograd) {
  SmallLayered run(layered_config(dir_, {"train.steps=1"}), dir_, nullptr);
  ASSERT_TRUE(at::GradMode::is_enabled());
  run.task.load_batch(1, 1);
  at::Tensor sums = at::zeros({static_cast<int64_t>(run.task.metric_names().size())}, at::kDouble);
  run.task.forward_backward(0, {}, sums);
  run.task.update_extra({});
  EXPECT_FALSE(sums.requires_grad());
  for (const nn::Parameter& parameter : run.task.parameters().all()) {
    EXPECT_FALSE(parameter.master.grad().requires_grad()) << parameter.name;
    EXPECT_EQ(parameter.master.grad_fn(), nullptr) << parameter.name;
    EXPECT_GT(parameter.master.grad().abs().max().item<float>(), 0) << parameter.name;
  }
}

TEST_F(LayeredRun, RefusesWhatDoesNotFit) {
  const auto refuse = [&](const Overrides& more, std::initializer_list<std::string> parts) {
    test::expect_error(ExitCode::usage, parts, [&] { layered_config(dir_, test::with({"train.steps=5"}, more)); });
  };
  refuse({"contrastive.learned_slots=64"}, {"contrastive.learned_slots", "has no memory"});
  refuse({"contrastive.kappa=4"}, {"contrastive.kappa", "set contrastive.network to memory"});
  for (const char* memory : {"coord_dim_n=8", "metric_mode=block_rot", "rotor_mode=off", "rotor_k=4", "sdm_capacity=8",
                             "R_source=curvature", "spatial_rows=2", "dynamics_mode=symplectic", "symplectic_dt=0.001",
                             "symplectic_stiffness=1", "progress_every=3"}) {
    const std::string setting = cat("contrastive.", memory);
    refuse({setting}, {setting.substr(0, setting.find('=')), "has no memory"});
  }
  refuse({"contrastive.commit=guide"}, {"contrastive.commit", "does not run the original's window"});
  refuse({"contrastive.rule=feedforward", "contrastive.momentum=0.3"}, {"contrastive.momentum", "relaxes nothing"});
  refuse({"contrastive.rule=backprop", "contrastive.beta_nudge=0.3"}, {"contrastive.beta_nudge", "no nudged phase"});
  refuse({"optim.ema=0.999"}, {"optim.ema", "set optim.ema to 0"});
  refuse({"parallel.zero=1"}, {"parallel.zero", "set parallel.zero to 0"});
  const auto refuse_memory = [&](const Overrides& more, std::initializer_list<std::string> parts) {
    const Overrides settings =
        test::with({"task=contrastive", "train.steps=5", "data.train=" + test::source_dir() + "/data/digits"}, more);
    test::expect_error(ExitCode::usage, parts, [&] { config::validate(config::load_config({}, settings)); });
  };
  refuse_memory({"contrastive.layer_width=64"}, {"contrastive.layer_width", "has no hidden layers"});
  refuse_memory({"contrastive.rule=feedforward"}, {"contrastive.rule", "set contrastive.network to layered"});
}

TEST_F(LayeredRun, TheDefaultOfTheMomentumFollowsTheNetwork) {
  EXPECT_EQ(layered_config(dir_, {"train.steps=5"}).config.contrastive.momentum, 0.5);
  EXPECT_EQ(layered_config(dir_, {"train.steps=5", "contrastive.momentum=0"}).config.contrastive.momentum, 0);
  EXPECT_EQ(config::load_config({}, {"task=contrastive"}).config.contrastive.momentum, 0);
}

}  // namespace
}  // namespace hrm::tasks
