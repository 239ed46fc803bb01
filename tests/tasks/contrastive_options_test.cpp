// Options of task=contrastive that Trainer2 names, and what a run logs of them.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "hrm/base/text.h"
#include "hrm/commands/commands.h"
#include "hrm/objectives/contrastive.h"
#include "hrm/tasks/contrastive.h"
#include "objectives/geometric_memory_cases.h"
#include "support/expect_error.h"
#include "support/paths.h"
#include "train/small_run.h"

namespace hrm::tasks {
namespace {

using Settings = std::vector<std::string>;

const Settings kPlainSgd{"optim.name=sgd", "optim.lr=0.5", "optim.momentum=0"};

class ContrastiveOptions : public ::testing::Test {
 protected:
  Settings settings(const Settings& more) const {
    Settings all{"task=contrastive",
                 "run.dir=" + dir_.string(),
                 "data.train=" + test::source_dir() + "/data/digits",
                 "data.test=none",
                 "train.eval_every=0",
                 "contrastive.coord_dim_n=8",
                 "contrastive.learned_slots=16",
                 "contrastive.state_dim=8",
                 "contrastive.tbptt_window_steps=16",
                 "train.global_batch_size=32",
                 "optim.schedule=constant",
                 "train.log_every=1",
                 "runtime.device=cpu",
                 "runtime.threads=1"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  // Trains in turns until each of these steps; the metrics of each step, without times.
  std::vector<nlohmann::json> trained(const std::string& name, const std::vector<int64_t>& steps,
                                      const Settings& more) const {
    for (const int64_t until : steps) {
      commands::TrainOptions training;
      training.overrides = settings(more);
      training.overrides.push_back("run.name=" + name);
      training.overrides.push_back(cat("train.steps=", until));
      commands::run_train(training);
    }
    std::ifstream in(dir_ / name / "metrics.jsonl");
    std::vector<nlohmann::json> out;
    std::string line;
    while (std::getline(in, line)) {
      auto values = nlohmann::json::parse(line);
      if (!values.contains("train/loss")) continue;
      for (auto it = values.begin(); it != values.end();) {
        it = it.key().starts_with("train/") ? std::next(it) : values.erase(it);
      }
      out.push_back(std::move(values));
    }
    return out;
  }

  std::filesystem::path dir_ = testing::fresh_folder("run");
};

TEST_F(ContrastiveOptions, TrainAndResumeBitForBit) {
  for (const auto& [name, more] : std::map<std::string, Settings>{
           {"blocks", {"contrastive.metric_mode=block_rot", "contrastive.lowrank_r=2"}},
           {"curvature", {"contrastive.R_source=curvature", "contrastive.dynamics_mode=symplectic"}},
           {"derived", {"contrastive.frame_mode=derived"}},
           {"no_rotor", {"contrastive.rotor_mode=off"}},
           {"free_windows",
            {"contrastive.nudge_every_windows=3", "optim.name=sgd", "optim.lr=0.5", "optim.momentum=0"}}}) {
    const auto whole = trained(name + "_whole", {9}, more);
    EXPECT_EQ(trained(name + "_parts", {4, 9}, more), whole) << name;
    ASSERT_EQ(whole.size(), 9) << name;
    EXPECT_LT(whole.back()["train/loss"], whole.front()["train/loss"]) << name;
    EXPECT_LE(whole.back()["train/contraction"].get<double>(), 0.95001) << name;
    // Of the update before, which in free_windows had no nudge.
    EXPECT_EQ(whole.back()["train/dtheta"].get<double>() > 0, name != "no_rotor" && name != "free_windows") << name;
  }
}

// In the windows between, only the readout moves; what a nudged phase gives is the mean of nudged windows.
TEST_F(ContrastiveOptions, WindowsWithoutNudge) {
  Settings more = kPlainSgd;
  more.push_back("contrastive.nudge_every_windows=3");
  const auto steps = trained("every_third", {7}, more);
  for (size_t i = 0; i < steps.size(); ++i) {
    const bool nudged = i % 3 == 0;  // windows are counted from 0
    EXPECT_EQ(steps[i]["train/nudged"].get<double>(), nudged ? 1 : 0) << i;
    EXPECT_EQ(steps[i].contains("train/lior_plus"), nudged) << i;
    // What the update before changed.
    if (i == 0) continue;
    EXPECT_EQ(steps[i]["train/dg"].get<double>() > 0, i % 3 == 1) << i;
    EXPECT_EQ(steps[i]["train/dtheta"].get<double>() > 0, i % 3 == 1) << i;
  }
  more.push_back("train.log_every=7");
  const auto summed = trained("summed", {7}, more);
  ASSERT_EQ(summed.size(), 1);
  double sum = 0;
  for (const size_t i : {0, 3, 6}) sum += steps[i]["train/lior_plus"].get<double>();
  EXPECT_NEAR(summed[0]["train/lior_plus"].get<double>(), sum / 3, 1e-9);
  EXPECT_NEAR(summed[0]["train/nudged"].get<double>(), 3.0 / 7, 1e-12);
}

// The original's rule learns what the readout learns alone.
TEST_F(ContrastiveOptions, TheScalarRuleIsTheReadoutAlone) {
  const auto with = [&](const std::string& rule) {
    Settings more = kPlainSgd;
    more.push_back("contrastive.rule=" + rule);
    return trained(rule, {40}, more).back()["train/loss"].get<double>();
  };
  const double readout = with("readout"), scalar = with("scalar"), symmetric = with("symmetric");
  EXPECT_NEAR(scalar, readout, 0.02 * readout);
  EXPECT_LT(symmetric, 0.97 * readout);
}

TEST_F(ContrastiveOptions, FieldEnergiesAreLogged) {
  const auto steps =
      trained("field", {4},
              {"contrastive.dynamics_mode=symplectic", "contrastive.symplectic_dt=0.05", "contrastive.R_source=slots"});
  const auto value = [&](const char* key) { return steps.back()[std::string("train/field_") + key].get<double>(); };
  EXPECT_GT(value("kinetic"), 0);
  EXPECT_GT(value("potential"), 0);
  EXPECT_GT(value("gradient"), 0);
  EXPECT_NEAR(value("energy"), value("kinetic") + value("potential") + value("gradient"), 1e-6 * value("energy"));
  EXPECT_LT(std::abs(value("drift")), 1e-4);
  EXPECT_NE(value("drift"), 0);
}

TEST_F(ContrastiveOptions, RefuseWhatDoesNotFit) {
  const auto refuse = [&](const Settings& more, const std::vector<std::string>& parts) {
    test::expect_error(ExitCode::usage, parts, [&] {
      Settings all = settings(more);
      all.push_back("train.steps=5");
      config::validate(config::load_config({}, all));
    });
  };
  refuse({"contrastive.metric_mode=block_rot", "contrastive.coord_dim_n=7"}, {"contrastive.metric_mode", "even"});
  refuse({"contrastive.metric_mode=block_rot", "contrastive.rule=scalar"}, {"contrastive.rule", "diag_rot"});
  refuse({"contrastive.rotor_k=0"}, {"contrastive.rotor_mode", "set contrastive.rotor_mode to off"});
  refuse({"contrastive.rotor_mode=off", "contrastive.rotor_k=4"}, {"contrastive.rotor_k", "has no effect"});
  refuse({"contrastive.nudge_every_windows=2"}, {"contrastive.nudge_every_windows", "adamw", "set optim.name to sgd"});
  for (const char* memory : {"optim.momentum=0.9", "optim.weight_decay=0.1", "optim.groups=keys=0.5:1"}) {
    Settings more = kPlainSgd;
    more.insert(more.end(), {"contrastive.nudge_every_windows=2", memory});
    refuse(more, {"contrastive.nudge_every_windows", "plain SGD"});
  }
  Settings readout = kPlainSgd;
  readout.insert(readout.end(), {"contrastive.rule=readout", "contrastive.nudge_every_windows=2"});
  refuse(readout, {"contrastive.nudge_every_windows", "has no effect"});
  refuse({"contrastive.frame_mode=learned_lowrank"}, {"contrastive.frame_mode", "set contrastive.lowrank_r"});
  refuse({"contrastive.frame_mode=other"}, {"contrastive.frame_mode", "rotor, derived"});
  const config::Config derived = config::load_config({}, settings({"contrastive.frame_mode=derived"})).config;
  EXPECT_EQ(derived.contrastive.rotor_mode, config::RotorMode::derived);
}

// In parts it is the same phase, and its last loss is that of the whole one.
TEST(RelaxationProgress, ShowsHowThePhaseSettles) {
  const auto options = test::small_memory();
  const auto memory = test::make_memory(options, at::kDouble);
  const at::NoGradGuard no_grad;
  const at::Tensor inputs = test::random_normal({12, options.features}, 5, at::kDouble);
  const at::Tensor targets = at::arange(12, at::kLong).remainder(options.classes);
  const auto window = memory->prepare(false);
  RelaxationProgress progress;
  EXPECT_TRUE(progress.take().empty());
  progress.measure(7, *memory, window, inputs, targets, 20);
  const auto lines = progress.take();
  ASSERT_EQ(lines.size(), 1);
  EXPECT_TRUE(lines[0].starts_with("step 7, relaxation 0: loss ")) << lines[0];
  EXPECT_NE(lines[0].find(" | 2: loss "), std::string::npos) << lines[0];
  EXPECT_EQ(std::count(lines[0].begin(), lines[0].end(), '|'), RelaxationProgress::kParts) << lines[0];
  const auto whole = objectives::contrastive_gradients(*memory, window, inputs, targets,
                                                       {.rule = objectives::ContrastiveRule::readout, .steps = 20});
  const size_t last = lines[0].rfind("20: loss ");
  ASSERT_NE(last, std::string::npos) << lines[0];
  EXPECT_NEAR(std::stod(lines[0].substr(last + 9)), whole.loss.item<double>(), 1e-4);
  EXPECT_TRUE(progress.take().empty());
}

}  // namespace
}  // namespace hrm::tasks
